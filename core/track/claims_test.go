// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// in puts a Service into a namespace and gives it an age.
func in(ns string, age int64, s *model.Service) *model.Service {
	s.Name.Namespace, s.Created = ns, time.Unix(age, 0)
	return s
}

func balanced(s *model.Service, ips ...string) *model.Service {
	s.Type = model.LoadBalancer
	for _, ip := range ips {
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.MustParseAddr(ip))
	}
	return s
}

func external(s *model.Service, ips ...string) *model.Service {
	for _, ip := range ips {
		s.ExternalIPs = append(s.ExternalIPs, netip.MustParseAddr(ip))
	}
	return s
}

func sliceIn(ns, svc string, ips ...string) *model.Slice {
	s := slice(svc+"-1", svc, 80, ips...)
	s.Name.Namespace = ns
	return s
}

// at lists what a Service has, but for its cluster IP, and then the reasons of its problems.
func at(tr *track.Tracker, ns, n string) string {
	v := tr.Service(model.ServiceName{Namespace: ns, Name: n})
	var all []string
	for _, p := range v.Ports {
		for _, f := range p.Frontends {
			if f.Kind != model.KindClusterIP {
				all = append(all, f.At.String())
			}
		}
	}
	slices.Sort(all)
	for _, p := range v.Problems {
		all = append(all, p.Why.String())
	}
	return strings.Join(all, " ")
}

// Who may write the field comes first, then age: no user takes a load balancer's address by a Service that is
// older, nor another port of it, and whom it belongs to notices nothing.
func TestAuthorityRanksBeforeAge(t *testing.T) {
	const ip = "203.0.113.1"
	for _, c := range []struct {
		what       string
		thief      *model.Service
		allowed    bool
		want, said string // of the thief
	}{
		{"an older external IP", in("evil", 1, external(service("t", "10.96.0.9", 443), ip)), false, "LoadBalancerAddress", "external IP 203.0.113.1: address is a load balancer IP of another namespace; to allow it, add 203.0.113.1/32 to --allowed-external-ips"},
		{"a newer one of another port", in("evil", 9, external(service("t", "10.96.0.9", 80), ip)), false, "LoadBalancerAddress", ""},
		{"the same, allowed", in("evil", 9, external(service("t", "10.96.0.9", 80), ip)), true, "203.0.113.1:80", ""},
		{"an older one, allowed", in("evil", 1, external(service("t", "10.96.0.9", 443), ip)), true, "FrontendTaken", "external IP 203.0.113.1:443 (tcp) belongs to Service shop/web: another Service already has this address and port"},
		{"an older one of the namespace", in("shop", 1, external(service("t", "10.96.0.9", 443), ip)), false, "FrontendTaken", ""},
		{"another port in the namespace", in("shop", 1, external(service("t", "10.96.0.9", 80), ip)), false, "203.0.113.1:80", ""},
		{"a load balancer that is older", in("evil", 1, balanced(service("t", "10.96.0.9", 80), ip)), false, "203.0.113.1:80", ""},
	} {
		for order := range 2 {
			tr := track.New()
			h := host("z")
			if c.allowed {
				h.Guard.Allowed = []netip.Prefix{netip.MustParsePrefix(ip + "/32")}
			}
			tr.SetHost(h)
			victim := in("shop", 5, balanced(service("web", "10.96.0.1", 443), ip))
			for i := range 2 {
				if i == order {
					tr.Set(c.thief)
				} else {
					tr.Set(victim)
				}
				tr.Flush()
			}
			if got := at(tr, "shop", "web"); got != ip+":443" {
				t.Errorf("%s: the victim has %q", c.what, got)
			}
			if got := at(tr, c.thief.Name.Namespace, "t"); got != c.want {
				t.Errorf("%s: %q, want %q", c.what, got, c.want)
			}
			if ps := tr.Service(c.thief.Name).Problems; c.said != "" && (len(ps) != 1 || ps[0].Text() != c.said) {
				t.Errorf("%s: %v, want %s", c.what, ps, c.said)
			}
			tr.Delete(victim)
			tr.Flush()
			if got := at(tr, c.thief.Name.Namespace, "t"); !strings.HasPrefix(got, ip) {
				t.Errorf("%s: %q once the other is gone", c.what, got)
			}
		}
	}
}

// An external IP that is refused keeps the address from nobody.
func TestARefusedExternalIPIsInNobodysWay(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	tr.Set(in("evil", 1, external(service("t", "10.96.0.9", 80), "203.0.113.1")))
	tr.Set(in("shop", 5, balanced(service("web", "10.96.0.1", 443), "203.0.113.1")))
	tr.Set(in("shop", 6, external(service("acme", "10.96.0.2", 80), "203.0.113.1")))
	tr.Flush()
	if got := at(tr, "shop", "acme"); got != "203.0.113.1:80" {
		t.Errorf("%q", got)
	}
}

// An external IP at an endpoint of another namespace is refused, whichever comes first, and so is one at
// an address of another node, which serves it; what an administrator allows is as it was.
func TestExternalIPsOfPodsAndNodes(t *testing.T) {
	const ip = "10.244.2.5"
	steps := []struct {
		what string
		do   func(*track.Tracker)
		want string
	}{
		{"nothing has it", func(*track.Tracker) {}, ip + ":80"},
		{"an endpoint of the same namespace", func(tr *track.Tracker) { tr.Set(sliceIn("evil", "own", ip)) }, ip + ":80"},
		{"one of another", func(tr *track.Tracker) { tr.Set(sliceIn("shop", "web", "10.244.2.9", ip)) }, "EndpointAddress"},
		{"of two others", func(tr *track.Tracker) { tr.Set(sliceIn("blog", "web", ip)) }, "EndpointAddress"},
		{"of one again", func(tr *track.Tracker) { tr.Set(sliceIn("shop", "web", "10.244.2.9")) }, "EndpointAddress"},
		{"of none", func(tr *track.Tracker) {
			tr.Delete(&model.Slice{Name: model.SliceName{Namespace: "blog", Name: "web-1"}})
		}, ip + ":80"},
		{"another node", func(tr *track.Tracker) { tr.SetOtherNode("n2", []netip.Addr{netip.MustParseAddr(ip)}) }, "OtherNodeAddress"},
		{"and another", func(tr *track.Tracker) { tr.SetOtherNode("n3", []netip.Addr{netip.MustParseAddr(ip)}) }, "OtherNodeAddress"},
		{"one is gone", func(tr *track.Tracker) { tr.SetOtherNode("n2", nil) }, "OtherNodeAddress"},
		{"allowed", func(tr *track.Tracker) {
			h := host("z")
			h.Guard.Allowed = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
			tr.SetHost(h)
		}, ip + ":80"},
		{"not any more", func(tr *track.Tracker) { tr.SetHost(host("z")) }, "OtherNodeAddress"},
		{"both nodes are gone", func(tr *track.Tracker) { tr.SetOtherNode("n3", nil) }, ip + ":80"},
		{"an endpoint once more", func(tr *track.Tracker) { tr.Set(sliceIn("shop", "web", ip)) }, "EndpointAddress"},
		{"on this node's own address", func(tr *track.Tracker) {
			h := host("z")
			h.Guard.NodeIPs = []netip.Addr{netip.MustParseAddr(ip)}
			h.Guard.Listeners = &model.Listeners{}
			tr.SetHost(h)
		}, ip + ":80"},
		{"of another machine again", func(tr *track.Tracker) { tr.SetHost(host("z")) }, "EndpointAddress"},
	}
	tr := track.New()
	tr.SetHost(host("z"))
	svc := in("evil", 1, external(service("t", "10.96.0.9", 80), ip))
	tr.Set(svc)
	for i := range 100 { // whom it is nothing to
		tr.Set(in("other", 1, external(service(fmt.Sprint("s", i), fmt.Sprint("10.96.1.", i), 80), fmt.Sprint("203.0.113.", i))))
	}
	tr.Flush()
	for n, step := range steps {
		before := tr.Stats().Resolved
		step.do(tr)
		tr.Flush()
		if got := at(tr, "evil", "t"); got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
		if n := tr.Stats().Resolved - before; n > 1 {
			t.Errorf("%s: %d Services resolved", step.what, n)
		}
		fresh := track.New() // everything is there before it
		fresh.SetHost(tr.Host())
		for _, s := range steps[:n+1] {
			s.do(fresh)
		}
		fresh.Set(svc)
		fresh.Flush()
		if got := at(fresh, "evil", "t"); got != step.want {
			t.Errorf("%s, before the Service: %q, want %q", step.what, got, step.want)
		}
	}
}

// Whatever the order of events, the holders and the problems are those of a Tracker that gets the last state at
// once, and of one that resumes.
func TestOverrulesDoNotDependOnOrder(t *testing.T) {
	ips := many("203.0.113.0", 3)
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 36))
		ns := func() string { return string(rune('a' + rng.IntN(3))) }
		some := func() (all []netip.Addr) {
			for _, ip := range ips {
				if rng.IntN(3) == 0 {
					all = append(all, ip)
				}
			}
			return all
		}
		tr := track.New()
		h := host("z")
		tr.SetHost(h)
		services, all, nodes := map[model.ServiceName]*model.Service{}, map[model.SliceName]*model.Slice{}, map[string][]netip.Addr{}
		for range 60 {
			switch rng.IntN(8) {
			case 0:
				h = host("z")
				for _, ip := range some() {
					h.Guard.Allowed = append(h.Guard.Allowed, netip.PrefixFrom(ip, 32))
				}
				tr.SetHost(h)
			case 1:
				n := fmt.Sprint("n", rng.IntN(2))
				nodes[n] = some()
				tr.SetOtherNode(n, nodes[n])
			case 2, 3:
				s := sliceIn(ns(), string(rune('a'+rng.IntN(2))))
				for _, ip := range some() {
					s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: ip})
				}
				tr.Set(s)
				all[s.Name] = s
			default:
				s := in(ns(), int64(rng.IntN(3)), service(string(rune('a'+rng.IntN(3))), fmt.Sprint("10.96.0.", rng.IntN(9)), uint16(80+rng.IntN(2))))
				s.ExternalIPs = some()
				if rng.IntN(3) == 0 {
					s.Type, s.LoadBalancerIPs = model.LoadBalancer, some()
				}
				if rng.IntN(9) == 0 {
					s.ClusterIPs = ips[:1]
				}
				if rng.IntN(4) == 0 {
					tr.Delete(s)
					delete(services, s.Name)
				} else {
					tr.Set(s)
					services[s.Name] = s
				}
			}
			if rng.IntN(3) == 0 {
				tr.Flush()
			}
		}
		tr.Flush()
		fresh := track.New()
		fresh.SetHost(h)
		for n, ips := range nodes {
			fresh.SetOtherNode(n, ips)
		}
		for _, s := range services {
			fresh.Set(s)
		}
		for _, s := range all {
			fresh.Set(s)
		}
		fresh.Flush()
		if got, want := held(tr), held(fresh); got != want {
			t.Fatalf("seed %d:\n got %s\nwant %s", seed, got, want)
		}
	}
}

// shared makes a Tracker with n Services of one tenant that ask for the same 999 external IPs, and a
// victim.
func shared(n int) *track.Tracker {
	tr := track.New()
	tr.SetHost(host("z"))
	for i := range n {
		tr.Set(sharing(i, 0))
	}
	tr.Set(in("shop", 5, service("web", "10.97.0.1", 80)))
	tr.Flush()
	tr.NewProblems()
	return tr
}

var sharedIPs = many("198.18.0.0", 999)

// sharing is one of them, without some of the addresses.
func sharing(i, without int) *model.Service {
	s := in("evil", int64(1+i), service(fmt.Sprint("s", i), netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), 80))
	s.ExternalIPs = sharedIPs[without:]
	return s
}

// However many Services ask for the same addresses, an edit costs the one that has them, and the one
// that gets them.
func TestSharedExternalIPs(t *testing.T) {
	const n = 300
	tr := shared(n)
	for _, step := range []struct {
		what               string
		do                 func()
		resolved, problems int
	}{
		{"one in the line changes", func() { tr.Set(sharing(200, 1)) }, 1, 20},
		{"the holder gives up an address", func() { tr.Set(sharing(0, 1)) }, 2, 21},
		{"the holder goes", func() { tr.Delete(sharing(0, 0)) }, 2, 0},
		{"it comes again", func() { tr.Set(sharing(0, 0)) }, 2, 20},
		{"a load balancer has one of them", func() {
			tr.Set(in("shop", 9, balanced(service("lb", "10.97.0.2", 80), "198.18.0.5")))
		}, 2, 1},
		{"a victim's endpoint", func() { tr.Set(sliceIn("shop", "web", "10.0.0.1")) }, 1, 0},
		{"an endpoint at one", func() { tr.Set(sliceIn("shop", "web", "198.18.0.7")) }, 2, 1},
	} {
		before := tr.Stats().Resolved
		step.do()
		tr.Flush()
		if got := int(tr.Stats().Resolved - before); got > step.resolved {
			t.Errorf("%s: %d Services resolved, want %d", step.what, got, step.resolved)
		}
		if got := len(tr.NewProblems()); got > step.problems {
			t.Errorf("%s: %d problems reported", step.what, got)
		}
	}
	const said = "external IP 198.18.0.0:80 (tcp), which more than 4 Services ask for: another Service already has this address and port"
	ps := tr.Service(sharing(100, 0).Name).Problems
	if len(ps) != model.MaxProblems || ps[0].Text() != said || !strings.Contains(ps[19].Detail, "and 979 more problems") {
		t.Errorf("%d problems: %v", len(ps), ps)
	}
}

// Nobody gets an address of another node, however many ask for it: their edits look at no line, and one that comes or
// goes at the first of it.
func TestALineThatNobodyWinsIsNotWalked(t *testing.T) {
	const n = 300
	tr := shared(n)
	tr.SetOtherNode("n2", sharedIPs)
	tr.Flush()
	for _, step := range []struct {
		what   string
		do     func()
		looked uint64
	}{
		{"an edit of one", func() {
			s := sharing(200, 0)
			s.SessionAffinity = time.Hour
			tr.Set(s)
		}, 0},
		{"one gives all up", func() {
			s := sharing(200, 0)
			s.ExternalIPs = nil
			tr.Set(s)
		}, 999},
		{"and asks again", func() { tr.Set(sharing(200, 0)) }, 999},
	} {
		before := tr.Stats().Claimants
		step.do()
		tr.Flush()
		if looked := tr.Stats().Claimants - before; looked > step.looked {
			t.Errorf("%s: %d Services were looked at, want %d", step.what, looked, step.looked)
		}
	}
	if got := at(tr, "evil", "s200"); strings.Contains(got, ":") {
		t.Errorf("it has %q", got)
	}
}

// The port on which this node answers load balancers about a Service is nobody else's, also before it is open.
func TestHealthCheckNodePortsAreClaimed(t *testing.T) {
	s := &sockets{}
	tr := track.New()
	tr.KeepListeners(s.ask)
	h := ownHost()
	h.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	tr.SetHost(h)
	tr.Set(in("evil", 1, external(service("web", "10.96.0.1", 32000), "192.0.2.1")))
	tr.Flush()
	if got := at(tr, "evil", "web"); got != "192.0.2.1:32000" {
		t.Errorf("alone it has %q", got)
	}
	victim := in("shop", 2, balanced(service("lb", "10.96.0.2", 80), "203.0.113.1"))
	victim.External, victim.HealthCheckNodePort = model.Local, 32000
	tr.Set(victim)
	tr.Flush()
	if got := at(tr, "evil", "web"); got != "FrontendTaken" {
		t.Errorf("beside the Service that has the health check node port, it has %q", got)
	}
	if ps := tr.Service(victim.Name).Problems; len(ps) > 0 {
		t.Errorf("and that one has problems: %v", ps)
	}
	tr.Delete(victim)
	tr.Flush()
	if got := at(tr, "evil", "web"); got != "192.0.2.1:32000" {
		t.Errorf("after that it has %q", got)
	}
}

// A Service that only stands in line takes a place in each line, and its objects.
func TestMemoryOfSharedExternalIPs(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	few := shared(100)
	before := heap()
	many := shared(500)
	each := (heap() - before) / 500
	runtime.KeepAlive(few)
	runtime.KeepAlive(many)
	t.Logf("%d bytes a Service", each)
	if each > 25_000 {
		t.Errorf("%d bytes a Service", each)
	}
}

// BenchmarkSharedExternalIPs is an edit of one of many Services that ask for the same 999 addresses: of the holder,
// and of one in the line; and what a change of somebody else's endpoint takes beside one of these.
func BenchmarkSharedExternalIPs(b *testing.B) {
	for _, n := range []int{100, 1000} {
		for _, c := range []struct {
			what string
			edit func(i int) *model.Service
		}{
			{"holder", func(i int) *model.Service { return sharing(0, i%2) }},
			{"line", func(i int) *model.Service { return sharing(n/2, i%2) }},
			{"age", func(i int) *model.Service { return in("evil", int64(1+n*(i%2)), sharing(0, 0)) }},
		} {
			b.Run(fmt.Sprintf("services=%d/edit=%s", n, c.what), func(b *testing.B) {
				tr := shared(n)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i++
					tr.Set(c.edit(i))
					tr.Set(sliceIn("shop", "web", fmt.Sprint("10.0.0.", i%2)))
					tr.Flush()
					tr.NewProblems()
				}
			})
		}
	}
}

// BenchmarkDistinctExternalIPs is the first flush of 300 Services with 999 addresses each.
func BenchmarkDistinctExternalIPs(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		tr := track.New()
		tr.SetHost(host("z"))
		for i := range 300 {
			s := sharing(i, 0)
			s.ExternalIPs = many(fmt.Sprintf("198.%d.%d.0", 18+i/50, i%50*4), 999)
			tr.Set(s)
		}
		tr.Flush()
	}
}
