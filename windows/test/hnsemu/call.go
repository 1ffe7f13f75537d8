// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// Do carries out a call.
func (e *Emulator) Do(r Request) Response {
	c := Call{Name: r.Function(), Verb: r.Verb, Kind: r.Kind, ID: strings.ToLower(r.ID), Text: r.Text}
	e.mu.Lock()
	hook := e.hook
	if h, ok := e.handles[r.Handle]; ok && c.ID == "" {
		c.ID = h.id
	}
	e.mu.Unlock()
	if hook != nil {
		c.Code = hook(&c)
	}
	out, cost := e.finish(r, &c)
	if cost > 0 {
		time.Sleep(cost)
	}
	return out
}

// finish carries a call out and logs it. It returns the time that the caller has to wait.
func (e *Emulator) finish(r Request, c *Call) (out Response, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case c.Code != 0: // the hook's
	// rule: stopped
	case e.down:
		c.Code = e.answer("stopped/call")
	default:
		out, c.Code = e.carryOut(r, c.ID)
	}
	before := e.now
	e.pass(c)
	if e.wait {
		wait = e.now - before
	}
	if out.ID != "" {
		c.ID = out.ID
	}
	e.log = append(e.log, *c)
	if c.Code != 0 {
		return Response{Result: result(c.Code), Record: record(*c)}, wait
	}
	return out, wait
}

// pass advances the emulator's clock by the cost of a call.
//
// rule: time
func (e *Emulator) pass(c *Call) {
	cost := time.Millisecond
	if e.cost != nil {
		cost = e.cost(*c)
	}
	e.now += cost
	c.At = e.now
}

// result returns the HRESULT of a code.
//
// rule: win32-codes
func result(c hns.Code) uint32 {
	if c < 0x10000 {
		return 0x80070000 | uint32(c)
	}
	return uint32(c)
}

// record is an error record in the form that HNS has (kubernetes#100384, hcsshim#1043).
//
// rule: error-records
func record(c Call) string {
	b, _ := json.Marshal(map[string]any{"Success": false, "Error": c.Name + " refused", "ErrorCode": result(c.Code)}) // strings and a number
	return string(b)
}

func (e *Emulator) carryOut(r Request, id string) (Response, hns.Code) {
	switch r.Verb {
	case Rest:
		return e.rest(r.Text)
	case Enumerate:
		return e.enumerate(r)
	case Open:
		if !e.has(r.Kind, id) {
			return Response{}, e.missing(r.Kind)
		}
		return Response{Handle: e.open(r.Kind, id)}, 0
	case Create:
		return e.create(r)
	case Delete:
		return Response{}, e.delete(r.Kind, id)
	}
	h, ok := e.handles[r.Handle]
	if !ok || h.kind != r.Kind {
		return Response{}, e.stale()
	}
	switch r.Verb {
	case Modify:
		return Response{}, e.modify(h, r.Text)
	case Query:
		t, ok := e.properties(h)
		if !ok {
			return Response{}, notFound
		}
		return Response{Text: t}, 0
	}
	delete(e.handles, r.Handle)
	return Response{}, 0
}

// enumerate lists ids, filtered as hcsshim asks: by id, name or network.
//
// rule: filters id-case
func (e *Emulator) enumerate(r Request) (Response, hns.Code) {
	var query struct{ Filter string }
	var filter struct{ ID, Name, VirtualNetwork *string } // an empty one matches nothing
	if r.Text != "" && json.Unmarshal([]byte(r.Text), &query) != nil ||
		query.Filter != "" && json.Unmarshal([]byte(query.Filter), &filter) != nil {
		return Response{}, invalidJSON
	}
	ids := []string{}
	add := func(id, name, network string) {
		if (filter.ID == nil || strings.EqualFold(*filter.ID, id)) && (filter.Name == nil || *filter.Name == name) &&
			(filter.VirtualNetwork == nil || strings.EqualFold(*filter.VirtualNetwork, network)) {
			ids = append(ids, id)
		}
	}
	switch r.Kind {
	case Network:
		for _, n := range sorted(e.networks) {
			add(n.ID, n.Name, "")
		}
	case Endpoint:
		for _, p := range sorted(e.endpoints) {
			add(p.ID, p.Name, p.HostComputeNetwork)
		}
	case LoadBalancer:
		for _, lb := range sorted(e.balancers) {
			add(lb.ID, "", "")
		}
	case Namespace, SdnRoute:
		for h := range e.plain {
			if h.kind == r.Kind {
				add(h.id, "", "")
			}
		}
		slices.Sort(ids)
	}
	return Response{Text: text(ids)}, 0
}
