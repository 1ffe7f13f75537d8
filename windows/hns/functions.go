// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

// Functions reads objects and creates endpoints with the DLL's functions, in fewer calls than
// hcsshim, which lists objects with all their content and opens the network for each endpoint
// that it creates. It is safe for concurrent use.
type Functions struct {
	dll dll.Caller

	mu      sync.Mutex
	network string // id of the network that handle refers to; empty for none
	handle  uint64
}

// NewFunctions returns the functions of a DLL, or of an emulator.
func NewFunctions(d dll.Caller) *Functions { return &Functions{dll: d} }

// do makes a call. An error record is an error, whatever the result.
func (f *Functions) do(r dll.Request) (dll.Response, error) {
	out := f.dll.Do(r)
	if code := CodeOf(out); code != 0 || out.Record != "" {
		return out, &Error{Call: r.Function(), Code: code, Detail: out.Record}
	}
	return out, nil
}

// query is a query as hcsshim writes it. An empty filter is none.
func query(filter string) string {
	b, _ := json.Marshal(struct { // plain strings and numbers
		SchemaVersion Version
		Filter        string `json:",omitempty"`
	}{schema, filter})
	return string(b)
}

func decode[T any](r dll.Request, out dll.Response, err error) (v T, _ error) {
	if err == nil {
		if err = json.Unmarshal([]byte(out.Text), &v); err != nil {
			err = fmt.Errorf("%s: %w", r.Function(), err)
		}
	}
	return v, err
}

func (f *Functions) ids(k dll.Kind, filter string) ([]string, error) {
	r := dll.Request{Kind: k, Verb: dll.Enumerate, Text: query(filter)}
	out, err := f.do(r)
	return decode[[]string](r, out, err)
}

func read[T any](f *Functions, k dll.Kind, id string) (v T, err error) {
	out, err := f.do(dll.Request{Kind: k, Verb: dll.Open, ID: id})
	if err != nil {
		return v, err
	}
	return finish[T](f, k, out.Handle)
}

// finish reads an open object and closes it.
func finish[T any](f *Functions, k dll.Kind, handle uint64) (T, error) {
	defer f.dll.Do(dll.Request{Kind: k, Verb: dll.Close, Handle: handle}) // its result does not matter
	r := dll.Request{Kind: k, Verb: dll.Query, Handle: handle, Text: query("")}
	out, err := f.do(r)
	return decode[T](r, out, err)
}

func (f *Functions) EndpointIDs(network string) ([]string, error) {
	filter, _ := json.Marshal(map[string]string{"VirtualNetwork": network})
	return f.ids(dll.Endpoint, string(filter))
}

func (f *Functions) Endpoint(id string) (Endpoint, error) {
	return read[Endpoint](f, dll.Endpoint, id)
}

func (f *Functions) BalancerIDs() ([]string, error) { return f.ids(dll.LoadBalancer, "") }

func (f *Functions) Balancer(id string) (LoadBalancer, error) {
	return read[LoadBalancer](f, dll.LoadBalancer, id)
}

// CreateEndpoint keeps the network's handle for the next call. After a restart of HNS, or if
// the network no longer exists, the handle is invalid: the network is opened again, and the call
// repeated if HNS did not carry it out.
func (f *Functions) CreateEndpoint(e Endpoint) (Endpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	made, err := f.create(e)
	again := is(err, codeInvalidHandle, codeNetworkNotFound, codeNotFound)
	if again || down(err) {
		f.release()
	}
	if again {
		made, err = f.create(e)
	}
	return made, err
}

func (f *Functions) create(e Endpoint) (Endpoint, error) {
	if f.network != e.HostComputeNetwork {
		f.release()
		out, err := f.do(dll.Request{Kind: dll.Network, Verb: dll.Open, ID: e.HostComputeNetwork})
		if err != nil {
			return e, err
		}
		f.network, f.handle = e.HostComputeNetwork, out.Handle
	}
	settings, err := json.Marshal(e)
	if err != nil {
		return e, err
	}
	out, err := f.do(dll.Request{Kind: dll.Endpoint, Verb: dll.Create, Handle: f.handle, Text: string(settings)}) // HNS chooses the id
	if err != nil {
		return e, err
	}
	return finish[Endpoint](f, dll.Endpoint, out.Handle)
}

// release closes the network's handle, which may be invalid already.
func (f *Functions) release() {
	if f.network != "" {
		f.network = ""
		f.dll.Do(dll.Request{Kind: dll.Network, Verb: dll.Close, Handle: f.handle})
	}
}

func (f *Functions) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.release()
	return nil
}
