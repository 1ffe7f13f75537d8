// SPDX-License-Identifier: Apache-2.0

package flows_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
)

const (
	vip      = "10.96.0.10:53"
	lb       = "203.0.113.5:53"
	nodePort = "0.0.0.0:30053"
	epA      = "10.244.1.2:5353"
	epB      = "10.244.2.2:5353"
	epC      = "10.244.3.2:5353"
)

func host() *model.Host {
	return &model.Host{
		IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{
			netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"),
		}},
	}
}

// port makes a UDP port whose frontends all balance over the endpoints, or reject
// when there are none.
func port(name string, fronts, endpoints []string, draining ...string) *model.Port {
	p := &model.Port{ID: model.PortID{Service: model.ServiceName{Namespace: "default", Name: name}, Proto: model.UDP}}
	action := model.Action{Verdict: model.Reject}
	if len(endpoints) > 0 {
		action = model.Action{Verdict: model.Balance, Pool: pool(endpoints...)}
	}
	for _, at := range fronts {
		f := model.Frontend{At: netip.MustParseAddrPort(at)}
		if f.At.Addr().IsUnspecified() {
			f.Kind = model.KindNodePort
		}
		p.ID.Family = model.FamilyOf(f.At.Addr())
		for o := range f.On {
			f.On[o] = action
		}
		p.Frontends = append(p.Frontends, f)
	}
	for _, d := range draining {
		p.Draining = append(p.Draining, netip.MustParseAddrPort(d))
	}
	return p
}

func pool(endpoints ...string) *model.Pool {
	p := &model.Pool{}
	for _, e := range endpoints {
		p.Endpoints = append(p.Endpoints, model.Endpoint{Addr: netip.MustParseAddrPort(e)})
	}
	return p
}

func list(s ...string) []string { return s }

func flow(dst, from string) flows.Flow {
	return flows.Flow{Proto: model.UDP, Dst: netip.MustParseAddrPort(dst), From: netip.MustParseAddrPort(from)}
}

func TestStale(t *testing.T) {
	all := list(vip, lb, nodePort)
	for _, c := range []struct {
		name   string
		deltas []model.Delta
		stale  []flows.Flow
		kept   []flows.Flow
		fronts int // how many matches there must be
	}{
		{
			name:   "endpoint gone",
			deltas: []model.Delta{{Old: port("dns", all, list(epA, epB)), New: port("dns", all, list(epB))}},
			stale:  []flows.Flow{flow(vip, epA), flow(lb, epA), flow("192.0.2.1:30053", epA), flow("198.51.100.7:30053", epA)},
			kept: []flows.Flow{
				flow(vip, epB), flow("192.0.2.1:30053", epB), flow("10.96.0.11:53", epA), flow(epA, epA),
				flow("192.0.2.1:30054", epA), flow(vip, vip), flow("192.0.2.1:30053", "192.0.2.1:30053"),
			},
			fronts: 3,
		},
		{
			name:   "endpoint draining",
			deltas: []model.Delta{{Old: port("dns", all, list(epA, epB)), New: port("dns", all, list(epB), epA)}},
			kept:   []flows.Flow{flow(vip, epA)},
		},
		{
			name:   "drained endpoint gone",
			deltas: []model.Delta{{Old: port("dns", list(vip), list(epB), epA), New: port("dns", list(vip), list(epB))}},
			stale:  []flows.Flow{flow(vip, epA)},
			kept:   []flows.Flow{flow(vip, epB)},
			fronts: 1,
		},
		{
			name:   "scaled to zero",
			deltas: []model.Delta{{Old: port("dns", all, list(epA, epB)), New: port("dns", all, nil)}},
			stale:  []flows.Flow{flow(vip, epA), flow(vip, epB), flow("192.0.2.1:30053", epB)},
			kept:   []flows.Flow{flow("198.51.100.7:30053", "198.51.100.7:30053"), flow(vip, epC)},
			fronts: 3,
		},
		{
			name:   "scaled to zero while one drains",
			deltas: []model.Delta{{Old: port("dns", list(vip), list(epA, epB)), New: port("dns", list(vip), nil, epA)}},
			stale:  []flows.Flow{flow(vip, epB)},
			kept:   []flows.Flow{flow(vip, epA)},
			fronts: 1,
		},
		{
			name:   "service deleted",
			deltas: []model.Delta{{Old: port("dns", all, list(epA))}},
			stale:  []flows.Flow{flow(vip, epA), flow(vip, epC), flow("192.0.2.1:30053", epC), flow("198.51.100.7:30053", epA)},
			kept: []flows.Flow{
				flow(vip, vip), flow("192.0.2.1:30053", "192.0.2.1:30053"), flow("198.51.100.7:30053", epC),
				flow("198.51.100.7:30053", "198.51.100.7:30053"),
			},
			fronts: 3,
		},
		{
			name:   "front removed, the others stay",
			deltas: []model.Delta{{Old: port("dns", all, list(epA)), New: port("dns", list(vip), list(epA))}},
			stale:  []flows.Flow{flow(lb, epA), flow("192.0.2.1:30053", epA)},
			kept:   []flows.Flow{flow(vip, epA), flow(lb, lb)},
			fronts: 2,
		},
		{
			name:   "service added",
			deltas: []model.Delta{{New: port("dns", all, list(epA))}},
			stale: []flows.Flow{
				flow(vip, vip), flow(vip, epB), flow(lb, "203.0.113.5:53"),
				flow("192.0.2.1:30053", "192.0.2.1:30053"), flow("192.0.2.1:30053", epB),
			},
			kept: []flows.Flow{
				flow(vip, epA), flow("192.0.2.1:30053", epA),
				flow("198.51.100.7:30053", "198.51.100.7:30053"), flow("198.51.100.7:30053", epB),
			},
			fronts: 3,
		},
		{
			name:   "front added to a port that has endpoints",
			deltas: []model.Delta{{Old: port("dns", list(vip), list(epA)), New: port("dns", list(vip, lb), list(epA))}},
			stale:  []flows.Flow{flow(lb, lb)},
			kept:   []flows.Flow{flow(vip, vip), flow(lb, epA)},
			fronts: 1,
		},
		{
			name:   "first endpoints",
			deltas: []model.Delta{{Old: port("dns", list(vip), nil), New: port("dns", list(vip), list(epA))}},
			stale:  []flows.Flow{flow(vip, vip), flow(vip, epB)},
			kept:   []flows.Flow{flow(vip, epA)},
			fronts: 1,
		},
		{
			name:   "one more endpoint",
			deltas: []model.Delta{{Old: port("dns", all, list(epA)), New: port("dns", all, list(epA, epB))}},
		},
		{
			name:   "slots reordered",
			deltas: []model.Delta{{Old: port("dns", all, list(epA, epB)), New: port("dns", all, list(epB, epA))}},
		},
		{
			name: "front moves to another service",
			deltas: []model.Delta{
				{Old: port("old", list(lb, nodePort), list(epA, epB))},
				{New: port("new", list(lb, nodePort), list(epB, epC))},
			},
			stale:  []flows.Flow{flow(lb, epA), flow(lb, lb), flow("192.0.2.1:30053", epA), flow("198.51.100.7:30053", epA)},
			kept:   []flows.Flow{flow(lb, epB), flow(lb, epC), flow("192.0.2.1:30053", epB), flow("198.51.100.7:30053", epB)},
			fronts: 2,
		},
		{
			name: "front moves, the new service is passed first",
			deltas: []model.Delta{
				{New: port("new", list(lb, nodePort), list(epB, epC))},
				{Old: port("old", list(lb, nodePort), list(epA, epB))},
			},
			stale:  []flows.Flow{flow(lb, epA), flow("198.51.100.7:30053", epA)},
			kept:   []flows.Flow{flow(lb, epB), flow(lb, epC), flow("198.51.100.7:30053", epB)},
			fronts: 2,
		},
		{
			name:   "IPv6",
			deltas: []model.Delta{{Old: port("dns", list("[fd00::10]:53", "[::]:30053"), list("[fd00:1::2]:53")), New: nil}},
			stale:  []flows.Flow{flow("[fd00::10]:53", "[fd00:1::2]:53"), flow("[2001:db8::1]:30053", "[fd00:1::9]:53")},
			kept:   []flows.Flow{flow("192.0.2.1:30053", epA)},
			fronts: 2,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			stale := flows.Stale(host(), c.deltas)
			if len(stale) != c.fronts {
				t.Errorf("%d matches, want %d: %+v", len(stale), c.fronts, stale)
			}
			index := flowtest.IndexOf(stale)
			for _, f := range c.stale {
				if !index.Stale(f) {
					t.Errorf("%v from %v is not stale", f.Dst, f.From)
				}
			}
			for _, f := range c.kept {
				if index.Stale(f) {
					t.Errorf("%v from %v is stale", f.Dst, f.From)
				}
			}
		})
	}
}

func TestStaleIgnoresProtocolsWithHandshakes(t *testing.T) {
	for _, proto := range []model.Proto{model.TCP, model.SCTP} {
		p := port("web", list(vip, nodePort), list(epA))
		p.ID.Proto = proto
		if got := flows.Stale(host(), []model.Delta{{Old: p}, {New: p}}); len(got) != 0 {
			t.Errorf("%v: %+v", proto, got)
		}
	}
}

func TestStaleComparesProtocol(t *testing.T) {
	f := flow(vip, epA)
	f.Proto = model.TCP
	if flowtest.IndexOf(flows.Stale(host(), []model.Delta{{Old: port("dns", list(vip), list(epA))}})).Stale(f) {
		t.Error("a TCP flow is stale because of a UDP port")
	}
}

func TestNodePortsAnswerOnlyWhereTheHostSays(t *testing.T) {
	h := host()
	h.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	stale := flows.Stale(h, []model.Delta{{New: port("dns", list(nodePort), list(epA))}})
	if flowtest.IndexOf(stale).Stale(flow("192.0.2.1:30053", "192.0.2.1:30053")) {
		t.Error("a flow to an address without node ports is stale")
	}
}

// A frontend whose policy finally finds an endpoint is served again although its
// port had endpoints, for other frontends, all the time.
func TestFrontServedAgain(t *testing.T) {
	before := port("dns", list(vip, lb), list(epA))
	for o := range before.Frontends[1].On {
		before.Frontends[1].On[o] = model.Action{Verdict: model.Drop}
	}
	stale := flows.Stale(host(), []model.Delta{{Old: before, New: port("dns", list(vip, lb), list(epA))}})
	if len(stale) != 1 || stale[0].Frontend.String() != lb || stale[0].Reach != flows.Everything {
		t.Errorf("%+v", stale)
	}
}

func TestStaleIsDeterministic(t *testing.T) {
	deltas := []model.Delta{
		{Old: port("a", list(vip, nodePort), list(epA)), New: port("a", list(vip, lb), list(epB))},
		{Old: port("b", list("10.96.0.11:53"), list(epA))},
	}
	order := func() (s []string) {
		for _, m := range flows.Stale(host(), deltas) {
			s = append(s, m.Frontend.String())
		}
		return s
	}
	if a, b := order(), order(); !slices.Equal(a, b) {
		t.Errorf("%v, then %v", a, b)
	}
}

func TestMergesForgetLongLists(t *testing.T) {
	var x flows.Index
	keep := flows.SetOf(netip.MustParseAddrPort(epB))
	gone := func(i, n int) flows.Set {
		var s []netip.AddrPort
		for j := range n {
			s = append(s, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i), byte(j >> 8), byte(j)}), 53))
		}
		return flows.SetOf(s...)
	}
	for i := range 10 {
		x.Add(flows.Match{Proto: model.UDP, Frontend: netip.MustParseAddrPort(vip), Gone: gone(i, 500), Keep: keep})
	}
	m := x.Matches()
	if len(m) != 1 || len(m[0].Gone) > 1024 {
		t.Fatalf("%d matches, %d endpoints remembered", len(m), len(m[0].Gone))
	}
	if !x.Stale(flow(vip, "10.0.0.3:53")) || x.Stale(flow(vip, epB)) || x.Stale(flow(vip, vip)) {
		t.Error("forgetting the list changed the stale flows")
	}
}

func BenchmarkStaleOneOf1000Endpoints(b *testing.B) {
	var many []string
	for i := range 1000 {
		many = append(many, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 53).String())
	}
	h := host()
	d := []model.Delta{{Old: port("dns", list(vip, lb, nodePort), many), New: port("dns", list(vip, lb, nodePort), many[1:])}}
	for b.Loop() {
		flows.Stale(h, d)
	}
}

// A port whose rules were gone and are back is reported as if it were new: flows
// that began meanwhile and were not translated end, those to its endpoints stay.
func TestFlowsThatBeganWithoutRulesAreStale(t *testing.T) {
	p := port("dns", list("10.96.0.10:53"), list("10.0.0.1:53"))
	x := flowtest.IndexOf(flows.Stale(host(), []model.Delta{{New: p}}))
	if !x.Stale(flow("10.96.0.10:53", "10.96.0.10:53")) {
		t.Error("a flow that is not translated stays")
	}
	if x.Stale(flow("10.96.0.10:53", "10.0.0.1:53")) {
		t.Error("a flow to an endpoint ends")
	}
}
