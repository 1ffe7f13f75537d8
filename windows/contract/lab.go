// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

const (
	// maxCalls bounds the calls of a run; as many may be needed to delete what it made.
	maxCalls = 20000
	// patience is how long one call may take.
	patience = time.Minute
)

// The names of a run's networks, and their addresses.
const (
	ownName    = "tandem-test-hns"
	secondName = "tandem-test-hns-2"
)

const (
	ownPods     = "198.18.0.0/16"
	ownPodsBits = 16
)

// ofNetwork returns an address of the network outside all experiments' ranges; 1 is the
// gateway's.
func ofNetwork(host int) string { return fmt.Sprintf("198.18.0.%d", host) }

// pod, vip and port return addresses and the load balancer port of this experiment alone:
// objects that others could not delete do not conflict with it.
func (l *lab) pod(host int) string { return fmt.Sprintf("198.18.%d.%d", l.number, host) }

func (l *lab) vip(host int) string { return fmt.Sprintf("198.19.%d.%d", l.number, host) }

func (l *lab) port() int { return firstPort + rounds*l.number }

// The ports of load balancers: below node ports and the ports of clients.
const (
	firstPort = 20000
	rounds    = 10 // ports of each experiment, and how often some repeat their steps
)

// object is an object of HNS as JSON.
type object map[string]any

func (o object) id() string { s, _ := o["ID"].(string); return s }

// lab runs experiments on one network, and deletes the objects of each. After a step of
// preparation has failed, the experiment makes no more calls.
type lab struct {
	ctx     context.Context
	hns     HNS
	about   About
	options Options
	kind    string // the network's type
	network string // its id
	number  int    // of the experiment, from 1, over all networks: below 256

	failed  string // why an experiment could not be prepared
	ended   string // why the run ends
	hung    bool   // a call has not returned
	made    []item
	left    []string
	lost    bool // an object was created whose id could not be read
	calls   int
	times   map[string][]time.Duration
	cleanup bool
}

// item is an object that has to be deleted.
type item struct {
	kind dll.Kind
	id   string
}

// fail notes why the experiment could not be prepared. The first reason counts.
func (l *lab) fail(format string, args ...any) {
	if l.failed == "" {
		l.failed = fmt.Sprintf(format, args...)
	}
}

// call makes a call. After a call that hangs, a failed preparation or too many calls it
// returns notAsked instead.
func (l *lab) call(r dll.Request) dll.Response {
	if l.hung || l.failed != "" && !l.cleanup || l.calls >= 2*maxCalls {
		return dll.Response{Result: notAsked}
	}
	l.calls++
	began := time.Now()
	answered := make(chan dll.Response, 1)
	go func() { answered <- l.hns.Do(r) }()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case out := <-answered:
		l.times[r.Function()] = append(l.times[r.Function()], time.Since(began))
		return out
	case <-late.C: // a second call while one hangs would hang as well
		l.hung, l.ended = true, fmt.Sprintf("%s has not returned within %s", r.Function(), patience)
		return dll.Response{Result: notAsked}
	}
}

// notAsked is the HRESULT of ERROR_CANCELLED, for calls that were not made.
const notAsked = 0x800704c7

// invalidData is ERROR_INVALID_DATA, for answers that are not valid JSON.
const invalidData hns.Code = 0xd

// text returns a code as an answer.
func text(c hns.Code) string {
	if c == 0 {
		return "ok"
	}
	return fmt.Sprintf("0x%x", uint32(c))
}

func encode(v any) string {
	if s, ok := v.(string); ok { // settings that HNS is to reject
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of strings and numbers
	}
	return string(b)
}

var schema = hns.Version{Major: 2}

// all is a query for everything.
func all() string { return encode(map[string]any{"SchemaVersion": schema}) }

// open returns a handle of an object.
func (l *lab) open(k dll.Kind, id string) (uint64, hns.Code) {
	out := l.call(dll.Request{Kind: k, Verb: dll.Open, ID: id})
	return out.Handle, hns.CodeOf(out)
}

// close closes a handle, which may be gone.
func (l *lab) close(k dll.Kind, handle uint64) {
	l.call(dll.Request{Kind: k, Verb: dll.Close, Handle: handle})
}

// properties reads an open object and closes it.
func (l *lab) properties(k dll.Kind, handle uint64) (o object, code hns.Code) {
	out := l.call(dll.Request{Kind: k, Verb: dll.Query, Handle: handle, Text: all()})
	l.close(k, handle)
	if hns.CodeOf(out) == 0 && json.Unmarshal([]byte(out.Text), &o) != nil {
		return nil, invalidData
	}
	return o, hns.CodeOf(out)
}

// read reads an object.
func (l *lab) read(k dll.Kind, id string) (object, hns.Code) {
	handle, code := l.open(k, id)
	if code != 0 {
		return nil, code
	}
	return l.properties(k, handle)
}

// create creates an object, which tidy deletes after the experiment.
func (l *lab) create(k dll.Kind, network string, settings any) (object, hns.Code) {
	r := dll.Request{Kind: k, Verb: dll.Create, Text: encode(settings)}
	if k == dll.Endpoint {
		handle, code := l.open(dll.Network, network)
		if code != 0 {
			return nil, code
		}
		defer l.close(dll.Network, handle)
		r.Handle = handle
	}
	out := l.call(r)
	if hns.CodeOf(out) != 0 {
		return nil, hns.CodeOf(out)
	}
	o, code := l.properties(k, out.Handle)
	if o.id() == "" {
		l.lost = true
		return o, code
	}
	l.made = append(l.made, item{k, o.id()})
	return o, code
}

// remove deletes an object.
func (l *lab) remove(k dll.Kind, id string) hns.Code {
	code := hns.CodeOf(l.call(dll.Request{Kind: k, Verb: dll.Delete, ID: id}))
	if code == 0 {
		l.made = slices.DeleteFunc(l.made, func(m item) bool { return m == item{k, id} })
	}
	return code
}

// modify changes an object.
func (l *lab) modify(k dll.Kind, id string, settings any) hns.Code {
	handle, code := l.open(k, id)
	if code != 0 {
		return code
	}
	defer l.close(k, handle)
	return hns.CodeOf(l.call(dll.Request{Kind: k, Verb: dll.Modify, Handle: handle, Text: encode(settings)}))
}

// list lists objects by a filter.
func (l *lab) list(k dll.Kind, filter map[string]string) (ids []string, code hns.Code) {
	out := l.call(dll.Request{Kind: k, Verb: dll.Enumerate, Text: encode(map[string]any{"SchemaVersion": schema, "Filter": encode(filter)})})
	if hns.CodeOf(out) == 0 && json.Unmarshal([]byte(out.Text), &ids) != nil {
		return nil, invalidData
	}
	return ids, hns.CodeOf(out)
}

// need creates an object that the experiment requires; an error fails its preparation.
func (l *lab) need(k dll.Kind, network string, settings any) object {
	o, code := l.create(k, network, settings)
	if code != 0 {
		l.fail("creating the %s of the experiment: %s", k, text(code))
	}
	return o
}

// endpoint describes a local endpoint.
func endpoint(addr string) object {
	return object{"Name": ownName, "SchemaVersion": schema, "IpConfigurations": []object{{"IpAddress": addr, "PrefixLength": ownPodsBits}}}
}

// remote describes an endpoint of another node.
func (l *lab) remote(addr string) object {
	o := endpoint(addr)
	o["Flags"], o["MacAddress"] = hns.FlagRemote, "02-11-c6-12-4d-01"
	if l.kind == hns.TypeOverlay {
		o["Policies"] = []object{{"Type": hns.PolicyProvider, "Settings": object{"ProviderAddress": "192.0.2.77"}}}
	}
	return o
}

// pods makes local endpoints, and returns their ids.
func (l *lab) pods(n int) (ids []string) {
	for i := range n {
		ids = append(ids, l.need(dll.Endpoint, l.network, endpoint(l.pod(10+i))).id())
	}
	return ids
}

// balancer describes a load balancer of one frontend.
func (l *lab) balancer(frontend string, endpoints ...string) object {
	return object{
		"HostComputeEndpoints": endpoints, "FrontendVIPs": []string{frontend}, "SchemaVersion": schema,
		"PortMappings": []object{l.mapping()},
	}
}

// mapping is a port mapping.
func (l *lab) mapping() object {
	return object{"Protocol": 6, "InternalPort": 7, "ExternalPort": l.port(), "DistributionType": 0, "Flags": 0}
}

// flagged returns a list of one port mapping with flags.
func (l *lab) flagged(flags int) []object { return []object{l.mapping().with("Flags", flags)} }

// with returns an object with a setting.
func (o object) with(name string, value any) object {
	c := maps.Clone(o)
	c[name] = value
	return c
}

// networkSettings describes a network.
func (l *lab) networkSettings(name, kind string) object {
	subnet := object{"IpAddressPrefix": ownPods, "Routes": []object{{"NextHop": ofNetwork(1), "DestinationPrefix": "0.0.0.0/0"}}}
	o := object{"Name": name, "Type": kind, "SchemaVersion": schema}
	switch kind {
	case hns.TypeOverlay:
		subnet["Policies"] = []object{{"Type": "VSID", "Settings": object{"IsolationId": 5077}}}
		fallthrough
	case hns.TypeL2Bridge:
		o["Policies"] = []object{{"Type": "NetAdapterName", "Settings": object{"NetworkAdapterName": l.options.Adapter}}}
	}
	if kind != typePrivate {
		o["Ipams"] = []object{{"Type": "Static", "Subnets": []object{subnet}}}
	}
	return o
}

// tidy deletes the objects of an experiment, the last one first. HNS may reject a deletion
// once (kubernetes#113524).
func (l *lab) tidy() {
	l.cleanup = true
	defer func() { l.cleanup = false }()
	if l.lost {
		l.lost = false
		l.empty(l.network)
	}
	for _, m := range slices.Backward(slices.Clone(l.made)) {
		code := l.remove(m.kind, m.id)
		if code != 0 && !code.NotFound() {
			code = l.remove(m.kind, m.id)
		}
		if code != 0 && !code.NotFound() {
			l.left = append(l.left, fmt.Sprintf("%s: %s", m.kind, text(code)))
		}
	}
	l.made = nil
}

// sweep deletes the networks of this and earlier runs with their endpoints and load balancers.
func (l *lab) sweep() {
	l.cleanup = true
	defer func() { l.cleanup = false }()
	for _, name := range []string{secondName, ownName} {
		ids, _ := l.list(dll.Network, map[string]string{"Name": name})
		for _, id := range ids {
			// Whether HNS filters is one of the questions: check the name.
			if n, code := l.read(dll.Network, id); code == 0 && n["Name"] == name && strings.EqualFold(n.id(), id) {
				l.empty(id)
				if code := l.remove(dll.Network, id); code != 0 && !code.NotFound() {
					l.left = append(l.left, "Network: "+text(code))
				}
			}
		}
	}
}

// empty deletes the endpoints of a network, and the load balancers that use only these.
func (l *lab) empty(network string) {
	ids, _ := l.list(dll.Endpoint, map[string]string{"VirtualNetwork": network})
	var own []string
	for _, id := range ids {
		if p, code := l.read(dll.Endpoint, id); code == 0 && strings.EqualFold(fmt.Sprint(p["HostComputeNetwork"]), network) {
			own = append(own, strings.ToLower(id))
		}
	}
	if len(own) == 0 {
		return
	}
	balancers, _ := l.list(dll.LoadBalancer, nil)
	for _, id := range balancers {
		lb, code := l.read(dll.LoadBalancer, id)
		used, _ := lb["HostComputeEndpoints"].([]any)
		foreign := slices.ContainsFunc(used, func(u any) bool { return !slices.Contains(own, strings.ToLower(fmt.Sprint(u))) })
		if code == 0 && len(used) > 0 && !foreign {
			if code := l.remove(dll.LoadBalancer, id); code != 0 && !code.NotFound() {
				l.left = append(l.left, "LoadBalancer: "+text(code))
			}
		}
	}
	for _, id := range own {
		if code := l.remove(dll.Endpoint, id); code != 0 && !code.NotFound() {
			l.left = append(l.left, "Endpoint: "+text(code))
		}
	}
}

// kept compares an object with the request, and lists the settings that differ: with names of
// the schema, and of values numbers only.
func kept(want, got object) string {
	var w map[string]any
	if json.Unmarshal([]byte(encode(want)), &w) != nil {
		return ""
	}
	if d := differences("", w, map[string]any(got)); len(d) > 0 {
		slices.Sort(d)
		return strings.Join(d, ", ")
	}
	return "kept"
}

func differences(path string, want, got any) []string {
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		var all []string
		for name, v := range w {
			have, there := g[name]
			switch {
			case !there && v == 0.0: // HNS leaves out zeros
			case !there:
				all = append(all, path+name+" absent")
			default:
				all = append(all, differences(path+name+" ", v, have)...)
			}
		}
		return all
	case []any:
		g, _ := got.([]any)
		if len(g) != len(w) {
			return []string{fmt.Sprintf("%s%d of %d", path, len(g), len(w))}
		}
		var all []string
		for i := range w {
			all = append(all, differences(path, w[i], g[i])...)
		}
		return all
	case string:
		if g, ok := got.(string); !ok || !strings.EqualFold(g, w) {
			return []string{path + "other"}
		}
	default:
		if w != got {
			return []string{path + number(got)}
		}
	}
	return nil
}

// number returns a value as an answer if it is a number, boolean or absent (0).
func number(v any) string {
	switch v := v.(type) {
	case nil:
		return "0"
	case float64:
		return fmt.Sprint(uint32(int64(v)))
	case bool:
		return fmt.Sprint(v)
	}
	return "other"
}
