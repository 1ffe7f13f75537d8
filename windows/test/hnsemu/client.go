// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"sync"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// Client is the emulator as the product sees it (hns.HNS): it makes the calls
// that the real adapter makes, in the same order, through hcsshim or not.
type Client struct {
	e       *Emulator
	mu      sync.Mutex
	network string // that is held open
	handle  uint64
}

// Client returns a client.
func (e *Emulator) Client() *Client { return &Client{e: e} }

var _ hns.HNS = (*Client)(nil)

func (c *Client) do(r Request) (Response, error) {
	out := c.e.Do(r)
	if out.Result == 0 {
		return out, nil
	}
	return out, &hns.Error{Call: r.Function(), Code: out.Code()}
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

// Networks implements hns.HNS.
//
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

func (c *Client) BalancerIDs() ([]string, error) {
	return c.ids(LoadBalancer, text(map[string]any{"SchemaVersion": hns.Version{Major: 2}}))
}

func (c *Client) Balancer(id string) (hns.LoadBalancer, error) {
	return get[hns.LoadBalancer](c, LoadBalancer, id)
}

func (c *Client) EndpointIDs(network string) ([]string, error) {
	filter := text(map[string]string{"VirtualNetwork": network})
	return c.ids(Endpoint, text(map[string]any{"SchemaVersion": hns.Version{Major: 2}, "Filter": filter}))
}

func (c *Client) Endpoint(id string) (hns.Endpoint, error) { return get[hns.Endpoint](c, Endpoint, id) }

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

// CreateEndpoint implements hns.HNS. A network that was held open may be no
// more, or HNS was restarted: it is opened once again.
func (c *Client) CreateEndpoint(p hns.Endpoint) (hns.Endpoint, error) {
	made, err := c.create(p)
	lost, again := hns.HandleLost(err)
	if lost {
		c.release()
	}
	if again {
		made, err = c.create(p)
	}
	return made, err
}

func (c *Client) create(p hns.Endpoint) (hns.Endpoint, error) {
	h, err := c.hold(p.HostComputeNetwork)
	if err != nil {
		return p, err
	}
	out, err := c.do(Request{Kind: Endpoint, Verb: Create, Handle: h, Text: text(p)})
	if err != nil {
		return p, err
	}
	return finish[hns.Endpoint](c, Endpoint, out.Handle)
}

// hold opens a network, and keeps it open for the next endpoint.
func (c *Client) hold(network string) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.network == network {
		return c.handle, nil
	}
	c.let()
	out, err := c.do(Request{Kind: Network, Verb: Open, ID: network})
	if err != nil {
		return 0, err
	}
	c.network, c.handle = network, out.Handle
	return c.handle, nil
}

func (c *Client) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.let()
}

func (c *Client) let() {
	if c.network != "" {
		c.network = ""
		c.do(Request{Kind: Network, Verb: Close, Handle: c.handle}) // it may be gone already
	}
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

func (c *Client) Close() error {
	c.release()
	return nil
}
