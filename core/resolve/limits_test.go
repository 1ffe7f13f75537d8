// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

func addrs(first string, n int) []netip.Addr {
	all := make([]netip.Addr, n)
	for i, a := 0, addr(first); i < n; i, a = i+1, a.Next() {
		all[i] = a
	}
	return all
}

func withPorts(n int) *model.Service {
	s := service()
	s.Ports = nil
	for i := range n {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Proto: model.TCP, Port: uint16(i + 1)})
	}
	return s
}

// Source ranges count as what they are in a data plane.
func TestEntriesOfSourceRanges(t *testing.T) {
	s := withPorts(10)
	s.Type, s.LoadBalancerIPs = model.LoadBalancer, addrs("203.0.113.1", 1)
	before := resolve.Entries(s, 5)
	for _, a := range addrs("100.64.0.0", 1000) {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(a, 32))
	}
	if got := resolve.Entries(s, 5); got != before {
		t.Errorf("%d entries where ranges are not restricting, want %d", got, before)
	}
	s.Restricted = true
	if got := resolve.Entries(s, 5); got != before+10_000 {
		t.Errorf("%d entries, want %d", got, before+10_000)
	}
}

func TestExcess(t *testing.T) {
	with := func(s *model.Service, change func(*model.Service)) *model.Service {
		change(s)
		return s
	}
	for _, c := range []struct {
		service *model.Service
		want    string // the start of the problem; empty for none
	}{
		{service(), ""},
		{withPorts(resolve.MaxPorts), ""},
		{withPorts(resolve.MaxPorts + 1), "2501 ports, limit 2500"},
		{with(service(), func(s *model.Service) { s.ExternalIPs = addrs("198.18.0.0", resolve.MaxAddresses-1) }), ""},
		{with(service(), func(s *model.Service) { s.ExternalIPs = addrs("198.18.0.0", resolve.MaxAddresses) }), "1001 addresses, limit 1000"},
		{with(withPorts(2), func(s *model.Service) { s.ExternalIPs = addrs("198.18.0.0", 999) }), ""},
		{with(withPorts(3), func(s *model.Service) { s.ExternalIPs = addrs("198.18.0.0", 999) }), "3000 frontends (ports x addresses), limit 2500"},
		{with(withPorts(1251), func(s *model.Service) { s.ClusterIPs = append(s.ClusterIPs, addr("fd00::1")) }), "2502 frontends"},
		{with(withPorts(1251), func(s *model.Service) {
			s.Type = model.NodePort
			for i := range s.Ports {
				s.Ports[i].NodePort = uint16(30000 + i)
			}
		}), "2502 frontends"},
		{with(withPorts(2000), func(s *model.Service) { s.ExternalIPs = addrs("2001:db8::1", 10) }), ""}, // a family that it has no cluster IP of
		{with(withPorts(10), func(s *model.Service) {
			s.Type, s.Restricted, s.LoadBalancerIPs = model.LoadBalancer, true, addrs("203.0.113.1", 1)
			for _, a := range addrs("100.64.0.0", 3001) {
				s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(a, 32))
			}
		}), "30010 source ranges of frontends (ports x load balancer IPs x loadBalancerSourceRanges), limit 30000"},
	} {
		p, over := resolve.Excess(c.service)
		if over != (c.want != "") || !strings.HasPrefix(p.Detail, c.want) || over && (p.Why != model.WhyTooLarge || p.Object != "Service ns/svc") {
			t.Errorf("%d ports, %d addresses: %v, want %q", len(c.service.Ports), len(c.service.ExternalIPs)+1, p, c.want)
		}
	}
}

// Endpoints beyond the limit are left out, those of other nodes first: the Service
// continues with the rest.
func TestMoreEndpointsThanServed(t *testing.T) {
	svc := withPorts(100)
	svc.External = model.Local
	s := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: "svc-1"}, Service: "svc"}
	for _, p := range svc.Ports {
		s.Ports = append(s.Ports, model.SlicePort{Name: p.Name, Proto: p.Proto, Port: 8080})
	}
	for i, a := range addrs("10.0.0.1", 1000) {
		e := model.SliceEndpoint{Addr: a, Node: "there", State: model.Ready | model.Serving}
		if i >= 998 {
			e.Node = "here"
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	r := resolve.Service(host(), svc, []*model.Slice{s})
	const text = "100000 entries (each endpoint of a port on each of its frontends, 100 in all), limit 30000: serving 300 endpoints of each port, ready and local ones first"
	if len(r.Problems) != 1 || r.Problems[0].Detail != text || r.Problems[0].Why != model.WhyTooLarge {
		t.Errorf("problems: %v", r.Problems)
	}
	for _, p := range r.Ports {
		pool, local := p.Frontends[0].On[model.FromPod].Pool, 0
		for _, e := range pool.Endpoints {
			if e.Local {
				local++
			}
		}
		if len(pool.Endpoints) != 300 || local != 2 {
			t.Fatalf("%s: %d endpoints, %d of them local", p.ID, len(pool.Endpoints), local)
		}
	}
	for i := range 750 { // remote ones, then some of the last: the ready ones are few, and all needed
		s.Endpoints[i].State = 0
	}
	s.Endpoints[998].State = 0
	for _, p := range resolve.Service(host(), svc, []*model.Slice{s}).Ports {
		outside, pod := p.Frontends[0].On[model.FromOutside].Pool, p.Frontends[0].On[model.FromPod].Pool
		if outside == nil || pod == nil || len(pod.Endpoints) != 249 {
			t.Fatalf("%s: of 249 ready endpoints and 750 others: %v", p.ID, pod)
		}
	}
	s.Endpoints = s.Endpoints[:300]
	for i := range s.Endpoints {
		s.Endpoints[i].State = model.Ready | model.Serving
	}
	if r := resolve.Service(host(), svc, []*model.Slice{s}); len(r.Problems) != 0 || len(r.Ports[99].Frontends[0].On[0].Pool.Endpoints) != 300 {
		t.Errorf("as many as are served: %v", r.Problems)
	}
}

// However many problems a Service has, few are put in words.
func TestProblemsAreCounted(t *testing.T) {
	svc := withPorts(1000)
	r := resolve.Service(host(), svc, []*model.Slice{slice("svc-1", "10.0.0.1")})
	if len(r.Problems) != model.MaxProblems || r.More != 1000-model.MaxProblems {
		t.Errorf("%d problems and %d more", len(r.Problems), r.More)
	}
}

// However endpoints are chosen, the slots of all frontends together are within the limit.
func TestSlotsAreLimited(t *testing.T) {
	for _, c := range []struct {
		what             string
		ports, endpoints int
		maglev, weighted bool
		problem          string // the start of the first; empty for none
	}{
		{"maglev", 29, 500, true, false, ""},
		{"maglev of one endpoint", 2500, 1, true, false, ""},
		{"maglev of many ports", 30, 2, true, false, "30 frontends (ports x addresses), maglev has room for 29: chosen at random"},
		{"weights", 29, 3, false, true, ""},
		{"weights of many ports", 1000, 3, false, true, ""},
		{"weights of many ports and endpoints", 1000, 30, false, true, ""},
		{"weights that do not fit", 2500, 12, false, true, ""},
		{"weights of ports alike", 2500, 13, false, true, "1 of 13 EndpointSlices ignored"},
	} {
		svc := withPorts(c.ports)
		if c.maglev {
			svc.Choice.Scheduler = model.Maglev
		}
		var from []*model.Slice
		for i, a := range addrs("10.0.0.1", c.endpoints) {
			s := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: fmt.Sprint("svc-", i)}, Service: "svc", Weighted: c.weighted, Weight: uint16(997 - i)}
			for _, p := range svc.Ports {
				s.Ports = append(s.Ports, model.SlicePort{Name: p.Name, Proto: p.Proto, Port: 8000 + p.Port})
			}
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: a, Node: "there", State: model.Ready | model.Serving})
			from = append(from, s)
		}
		r := resolve.Service(host(), svc, from)
		slots := 0
		for _, p := range r.Ports {
			for _, f := range p.Frontends {
				slots += f.On[model.FromPod].Pool.Size()
			}
		}
		if slots > resolve.MaxEntries {
			t.Errorf("%s: %d slots, limit %d", c.what, slots, resolve.MaxEntries)
		}
		if got := fmt.Sprint(r.Problems); c.problem == "" && len(r.Problems) > 0 || !strings.Contains(got, c.problem) {
			t.Errorf("%s: problems %s, want %q", c.what, got, c.problem)
		}
	}
}
