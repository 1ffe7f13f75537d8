// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// Kind is a kind of object, by the number that it has on the wire.
type Kind uint8

// The kinds.
const (
	Network Kind = iota + 1
	Endpoint
	Namespace
	LoadBalancer
	SdnRoute
)

// String returns the name that is part of the functions' names.
func (k Kind) String() string {
	return [...]string{"Service", "Network", "Endpoint", "Namespace", "LoadBalancer", "SdnRoute"}[k]
}

// Verb is what a function does.
type Verb uint8

// The verbs, by their numbers on the wire. Rest is HNSCall, the only function
// without a kind: the old API, of which the product asks for the version.
const (
	Enumerate Verb = iota
	Create
	Open
	Modify
	Query
	Delete
	Close
	Rest
)

// Request is a call of a function of the DLL.
type Request struct {
	Kind   Kind
	Verb   Verb
	Handle uint64 // of the object; of the network to create an endpoint in
	ID     string
	Text   string // settings, or a query; of Rest "METHOD /path\nbody"
}

// Response is what a function returns.
type Response struct {
	Result uint32 // an HRESULT
	Handle uint64
	ID     string
	Text   string // ids or properties
	Record string // an error record, as JSON
}

// Call is a call in the log.
type Call struct {
	Name string // such as "HcnCreateEndpoint"
	Verb Verb
	Kind Kind
	ID   string        // of the object, where it is known
	At   time.Duration // when it returned
	Code hns.Code      // 0 when it succeeded
	Text string        // settings
}

func name(k Kind, v Verb) string {
	switch v {
	case Rest:
		return "HNSCall"
	case Enumerate:
		return "HcnEnumerate" + k.String() + "s"
	case Query:
		return "HcnQuery" + k.String() + "Properties"
	}
	return "Hcn" + [...]string{Create: "Create", Open: "Open", Modify: "Modify", Delete: "Delete", Close: "Close"}[v] + k.String()
}

// Do carries out a call.
func (e *Emulator) Do(r Request) Response {
	c := Call{Name: name(r.Kind, r.Verb), Verb: r.Verb, Kind: r.Kind, ID: strings.ToLower(r.ID), Text: r.Text}
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

// finish carries a call out and logs it. It returns how long the caller has to
// wait.
func (e *Emulator) finish(r Request, c *Call) (out Response, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case c.Code != 0: // the hook's
	// rule: stopped
	case e.down:
		c.Code = 0x6ba
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

// pass lets time pass.
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

// The codes that the emulator itself answers with.
//
// rule: not-found bad-json unimplemented
const (
	notFound         hns.Code = 0x490
	invalidHandle    hns.Code = 6
	alreadyExists    hns.Code = 0xb7
	notImplemented   hns.Code = 0x80004001
	networkNotFound  hns.Code = 0x803b0001
	endpointNotFound hns.Code = 0x803b0002
	invalidPolicy    hns.Code = 0x803b000d
	portExists       hns.Code = 0x803b0013
	invalidJSON      hns.Code = 0x803b001b
	invalidReference hns.Code = 0x803b001c
	invalidIP        hns.Code = 0x803b001e
	hasReferences    hns.Code = 0x803b002c
)

func (e *Emulator) carryOut(r Request, id string) (Response, hns.Code) {
	switch r.Verb {
	case Rest:
		return e.rest(r.Text)
	case Enumerate:
		return e.enumerate(r)
	case Open:
		if !e.has(r.Kind, id) {
			return Response{}, notFound
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

// stale is what a handle that is none is answered with.
//
// rule: handles
func (e *Emulator) stale() hns.Code {
	if e.behaviour.StaleHandle != 0 {
		return e.behaviour.StaleHandle
	}
	return invalidHandle
}

func (e *Emulator) open(k Kind, id string) uint64 {
	e.next++
	e.handles[e.next] = handle{k, id}
	return e.next
}

// has reports whether there is an object, of which there may be any number.
//
// rule: no-limits
func (e *Emulator) has(k Kind, id string) bool {
	_, ok := e.properties(handle{k, id})
	return ok
}

func (e *Emulator) properties(h handle) (string, bool) {
	switch h.kind {
	case Network:
		n, ok := e.networks[h.id]
		return e.kept[h.id].with(text(n)), ok
	case Endpoint:
		p, ok := e.endpoints[h.id]
		return e.kept[h.id].with(text(p)), ok
	case LoadBalancer:
		lb, ok := e.balancers[h.id]
		return text(lb), ok
	}
	return "", false
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
	}
	return Response{Text: text(ids)}, 0
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of strings and numbers
	}
	return string(b)
}

func sorted[T any](m map[string]T) []T {
	all := make([]T, 0, len(m))
	for _, id := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[id])
	}
	return all
}
