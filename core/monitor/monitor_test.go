// SPDX-License-Identifier: Apache-2.0

package monitor_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
)

var at = netip.MustParseAddrPort

// What was seen is joined with the Service whose frontend it was to, of an address or of a node port, and what was rejected with the
// reason that policy has. What is no Service's is left out.
func TestJoining(t *testing.T) {
	host := &model.Host{
		IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		NodePorts: model.NodePortMatch{Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
	}
	pool := model.Action{Pool: &model.Pool{Endpoints: []model.Endpoint{{Addr: at("10.244.0.1:8080")}}}}
	none := model.Action{Verdict: model.Drop, Why: model.WhyNoLocalEndpoints}
	id := model.PortID{Service: model.ServiceName{Namespace: "shop", Name: "web"}, Name: "http", Proto: model.TCP}
	ports := []*model.Port{{ID: id, Frontends: []model.Frontend{
		{Kind: model.KindClusterIP, At: at("10.96.0.10:80"), On: [model.Origins]model.Action{pool, pool, pool}},
		{Kind: model.KindNodePort, At: at("0.0.0.0:30080"), On: [model.Origins]model.Action{pool, pool, none}},
		{Kind: model.KindLoadBalancer, At: at("203.0.113.10:80"), Restricted: true, On: [model.Origins]model.Action{pool, pool, pool}},
	}}}
	for _, tt := range []struct{ seen, want string }{
		{"10.244.0.9:1 10.96.0.10:80 forward 10.244.0.1:8080", "shop/web http cluster IP forward 10.244.0.1:8080 "},
		{"198.51.100.1:1 192.0.2.1:30080 forward 10.244.0.1:8080", "shop/web http node port forward 10.244.0.1:8080 "},
		{"10.244.0.9:1 192.0.2.9:30080 forward 10.244.0.1:8080", ""}, // of another node
		{"10.244.0.9:1 192.0.2.1:8080 forward 10.244.0.1:8080", ""},  // a host port, which CNI redirects
		{"198.51.100.1:1 192.0.2.1:30080 drop", "shop/web http node port drop  " + model.WhyNoLocalEndpoints.Text()},
		{"198.51.100.1:1 203.0.113.10:80 drop", "shop/web http load balancer IP drop  " + model.WhyOutsideRanges.Text()},
		{"10.244.0.9:1 10.96.0.10:81 reject", "shop/web  cluster IP reject  " + model.WhyNoSuchPort.Text()},
		{"10.244.0.9:1 10.96.0.10:80 drop", "shop/web http cluster IP drop  not by policy, which says forward"},
		{"10.244.0.9:1 10.96.0.10:81 lost", "shop/web  cluster IP reject  " + model.WhyNoSuchPort.Text()},
		{"198.51.100.1:1 203.0.113.10:80 lost", "shop/web http load balancer IP drop  " + model.WhyOutsideRanges.Text()},
		{"10.244.0.9:1 10.96.0.10:80 lost", "shop/web http cluster IP drop  not by policy, which says forward"},
		{"10.244.0.9:1 - forward 10.244.0.1:8080", "shop/web http  forward 10.244.0.1:8080 "},
		{"10.244.0.9:1 - reject", "shop/web http  reject  source ranges or traffic policy, or no endpoint"},
	} {
		f := append(strings.Fields(tt.seen), "")
		seen := monitor.Seen{Proto: model.TCP, Client: at(f[0]), Port: id}
		if f[1] != "-" {
			seen.To, seen.Port = at(f[1]), model.PortID{}
		}
		var err error
		if seen.Lost = f[2] == "lost"; seen.Lost {
			f[2] = oracle.Drop.String()
		}
		if seen.Fate, err = oracle.ParseFate(f[2]); err != nil {
			t.Fatal(err)
		}
		if f[3] != "" {
			seen.Endpoint = at(f[3])
		}
		e, ok := monitor.Of(host, ports, seen)
		got := strings.Join([]string{e.Service, e.Port, e.Kind, e.Verdict, e.Endpoint, e.Why}, " ")
		if ok != (tt.want != "") || ok && (got != tt.want || e.Namespace != "shop" || e.Client != f[0]) {
			t.Errorf("%s: %t, %q, want %q", tt.seen, ok, got, tt.want)
		}
	}
}

// Frontends that may reject some client are traced, and no others.
func TestRejecting(t *testing.T) {
	pool, none := model.Action{Pool: &model.Pool{}}, model.Action{Verdict: model.Reject}
	got := monitor.Rejecting([]*model.Port{{
		ID: model.PortID{Service: model.ServiceName{Namespace: "shop", Name: "web"}, Proto: model.TCP}, Frontends: []model.Frontend{
			{At: at("10.96.0.10:80"), On: [model.Origins]model.Action{pool, pool, pool}},
			{At: at("203.0.113.10:80"), Restricted: true, On: [model.Origins]model.Action{pool, pool, pool}},
			{At: at("0.0.0.0:30080"), On: [model.Origins]model.Action{pool, pool, none}},
		},
	}})
	if fmt.Sprint(got) != "[{shop tcp 203.0.113.10:80} {shop tcp 0.0.0.0:30080}]" {
		t.Error(got)
	}
}

// However many connections a namespace has, others are shown whole up to their share, and what is left out is counted
// in its place.
func TestShares(t *testing.T) {
	var all []monitor.Event
	for i := range 1000 {
		all = append(all, monitor.Event{Namespace: "noisy", Client: fmt.Sprint(i)})
		if i < 10 {
			all = append(all, monitor.Event{Namespace: "quiet", Client: fmt.Sprint(i)})
		}
		if i < 60 {
			all = append(all, monitor.Event{Namespace: "busy"})
		}
	}
	shown, leftOut := map[string]int{}, map[string]int{}
	for i, e := range monitor.Share(all, time.Now()) {
		if shown[e.Namespace]++; e.LeftOut > 0 {
			shown[e.Namespace]--
			leftOut[e.Namespace] += e.LeftOut
		}
		if e.LeftOut == 0 && i > 0 && e.Namespace == "quiet" && e.Client != fmt.Sprint(shown["quiet"]-1) {
			t.Errorf("out of order: %+v", e)
		}
	}
	if fmt.Sprint(shown, leftOut) != "map[busy:45 noisy:45 quiet:10] map[busy:15 noisy:955]" {
		t.Error(shown, leftOut)
	}
	all = nil
	for i := range 5000 {
		all = append(all, monitor.Event{Namespace: fmt.Sprint(i)})
	}
	sum, few := 0, monitor.Share(all, time.Now())
	for _, e := range few {
		sum += max(1, e.LeftOut)
	}
	if len(few) > 2*monitor.Most || sum != len(all) {
		t.Errorf("of many namespaces %d events, for %d connections", len(few), sum)
	}
}

// A ring is bounded, forgets the oldest, and says how many; a cursor of an earlier ring shows all.
func TestRing(t *testing.T) {
	r := monitor.NewRing(time.Now())
	next := r.Since(0).Next
	add := func(n int) {
		for range n {
			r.Add(monitor.Event{Namespace: "shop"})
		}
	}
	add(3)
	if p := r.Since(next); len(p.Events) != 3 || p.Forgotten != 0 || p.Next != next+3 || p.Events[0].Number != next {
		t.Errorf("%+v", p)
	}
	if p := r.Since(0); len(p.Events) != 0 || p.Next != next+3 {
		t.Errorf("at first: %+v", p)
	}
	add(20_000)
	p := r.Since(next)
	if n := uint64(len(p.Events)); n == 0 || n > 10_000 || n+p.Forgotten != 20_003 || p.Events[n-1].Number != next+20_002 {
		t.Errorf("%d events, %d forgotten", n, p.Forgotten)
	}
	if p := r.Since(p.Next); len(p.Events) != 0 || p.Forgotten != 0 {
		t.Errorf("after that: %d events, %d forgotten", len(p.Events), p.Forgotten)
	}
	again := monitor.NewRing(time.Now().Add(time.Second))
	again.Add(monitor.Event{})
	if p := again.Since(next); len(p.Events) != 1 || p.Forgotten != 0 {
		t.Errorf("of an earlier one: %+v", p)
	}
}
