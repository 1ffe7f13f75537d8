// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// Client is the emulator as an hns.HNS. It makes the same calls in the same order as
// hns.Functions and hcsshim.
type Client struct {
	*hns.Functions
	e *Emulator
}

// Client returns a client.
func (e *Emulator) Client() *Client { return &Client{hns.NewFunctions(e), e} }

var _ hns.HNS = (*Client)(nil)

func (c *Client) do(r Request) (Response, error) {
	out := c.e.Do(r)
	if out.Result == 0 {
		return out, nil
	}
	return out, &hns.Error{Call: r.Function(), Code: hns.CodeOf(out)}
}

func (c *Client) Version() (v hns.Version, err error) {
	out, err := c.do(Request{Verb: Rest, Text: "GET /globals/version\n"})
	if err != nil {
		return v, err
	}
	var reply struct{ Output hns.Version }
	err = json.Unmarshal([]byte(out.Text), &reply)
	return reply.Output, err
}

// rule: list-calls
func (c *Client) Networks() (all []hns.Network, err error) {
	ids, err := c.ids(Network, "")
	for _, id := range ids {
		n, err := get[hns.Network](c, Network, id)
		if err != nil { // hcsshim's list fails as a whole
			return nil, err
		}
		all = append(all, n)
	}
	return all, err
}

func (c *Client) ids(k Kind, query string) (ids []string, err error) {
	out, err := c.do(Request{Kind: k, Verb: Enumerate, Text: query})
	if err == nil {
		err = json.Unmarshal([]byte(out.Text), &ids)
	}
	return ids, err
}

func get[T any](c *Client, k Kind, id string) (v T, err error) {
	out, err := c.do(Request{Kind: k, Verb: Open, ID: id})
	if err != nil {
		return v, err
	}
	return finish[T](c, k, out.Handle)
}

// finish reads an open object and closes it.
func finish[T any](c *Client, k Kind, h uint64) (v T, err error) {
	out, err := c.do(Request{Kind: k, Verb: Query, Handle: h})
	if _, closed := c.do(Request{Kind: k, Verb: Close, Handle: h}); err == nil {
		err = closed
	}
	if err == nil {
		err = json.Unmarshal([]byte(out.Text), &v)
	}
	return v, err
}

func (c *Client) DeleteEndpoint(id string) error {
	_, err := c.do(Request{Kind: Endpoint, Verb: Delete, ID: id})
	return err
}

func (c *Client) CreateBalancer(lb hns.LoadBalancer) (hns.LoadBalancer, error) {
	out, err := c.do(Request{Kind: LoadBalancer, Verb: Create, Text: text(lb)})
	if err != nil {
		return lb, err
	}
	return finish[hns.LoadBalancer](c, LoadBalancer, out.Handle)
}

func (c *Client) ModifyBalancer(id string, to hns.LoadBalancer) (hns.LoadBalancer, error) {
	out, err := c.do(Request{Kind: LoadBalancer, Verb: Open, ID: id})
	if err != nil {
		return to, err
	}
	if _, err := c.do(Request{Kind: LoadBalancer, Verb: Modify, Handle: out.Handle, Text: text(to)}); err != nil {
		c.do(Request{Kind: LoadBalancer, Verb: Close, Handle: out.Handle})
		return to, err
	}
	return finish[hns.LoadBalancer](c, LoadBalancer, out.Handle)
}

func (c *Client) DeleteBalancer(id string) error {
	_, err := c.do(Request{Kind: LoadBalancer, Verb: Delete, ID: id})
	return err
}
