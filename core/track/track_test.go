// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

func host(zone string) *model.Host {
	return &model.Host{Name: "here", Zone: zone}
}

func name(n string) model.ServiceName { return model.ServiceName{Namespace: "ns", Name: n} }

func service(n string, ip string, ports ...uint16) *model.Service {
	s := &model.Service{Name: name(n), ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)}}
	for _, p := range ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", p), Proto: model.TCP, Port: p})
	}
	return s
}

func slice(n, svc string, port uint16, ips ...string) *model.Slice {
	s := &model.Slice{
		Name: model.SliceName{Namespace: "ns", Name: n}, Service: svc,
		Ports: []model.SlicePort{{Name: fmt.Sprint("p", port), Proto: model.TCP, Port: 8080}},
	}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.MustParseAddr(ip), State: model.Ready | model.Serving})
	}
	return s
}

// show renders deltas as "+ns/a:p80 10.0.0.1", "~...", "-...".
func show(deltas []model.Delta) string {
	var lines []string
	for _, d := range deltas {
		sign, p := "~", d.New
		switch {
		case d.Old == nil:
			sign = "+"
		case d.New == nil:
			lines = append(lines, "-"+d.Old.ID.String())
			continue
		}
		line := sign + p.ID.String()
		if len(p.Frontends) == 0 {
			line += " frontless"
		}
		for _, pool := range p.Pools() {
			for _, e := range pool.Endpoints {
				line += " " + e.Addr.Addr().String()
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

func want(t *testing.T, tr *track.Tracker, line string) {
	t.Helper()
	if got := show(tr.Flush()); got != line {
		t.Errorf("got  %q\nwant %q", got, line)
	}
}

func TestLife(t *testing.T) {
	tr := track.New()
	tr.Set(slice("a-1", "a", 80, "10.0.0.1")) // before its Service, and before the host
	tr.Set(service("a", "10.96.0.1", 80))
	want(t, tr, "")
	tr.SetHost(host("z"))
	want(t, tr, "+ns/a:p80 10.0.0.1")
	tr.Set(service("a", "10.96.0.1", 80)) // the same again
	tr.Set(slice("a-1", "a", 80, "10.0.0.1"))
	want(t, tr, "")
	tr.Set(slice("a-2", "a", 80, "10.0.0.2"))
	want(t, tr, "~ns/a:p80 10.0.0.1 10.0.0.2")
	tr.Delete(&model.Slice{Name: model.SliceName{Namespace: "ns", Name: "a-1"}})
	tr.Set(service("a", "10.96.0.1", 80, 443))
	want(t, tr, "+ns/a:p443; ~ns/a:p80 10.0.0.2")
	tr.Delete(&model.Service{Name: name("a")})
	want(t, tr, "-ns/a:p443; -ns/a:p80")
	tr.Set(service("a", "10.96.0.1", 80)) // its slices were kept
	want(t, tr, "+ns/a:p80 10.0.0.2")
	tr.Delete(&model.Service{Name: name("a")})
	tr.Set(service("a", "10.96.0.1", 80)) // gone and back within a flush
	want(t, tr, "")
}

func TestEndpointMovesBetweenSlicesAndSlicesBetweenServices(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	tr.Set(service("a", "10.96.0.1", 80))
	tr.Set(service("b", "10.96.0.2", 80))
	tr.Set(slice("s1", "a", 80, "10.0.0.1"))
	tr.Set(slice("s2", "a", 80))
	want(t, tr, "+ns/a:p80 10.0.0.1; +ns/b:p80")
	tr.Set(slice("s2", "a", 80, "10.0.0.1")) // in both for a moment
	want(t, tr, "")
	tr.Set(slice("s1", "a", 80))
	want(t, tr, "")
	tr.Set(slice("s2", "b", 80, "10.0.0.1")) // relabelled
	want(t, tr, "~ns/a:p80; ~ns/b:p80 10.0.0.1")
}

func TestAddressConflicts(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	a, b, c := service("a", "10.96.0.1", 80), service("b", "10.96.0.1", 80), service("c", "10.96.0.1", 80)
	tr.Set(b)
	tr.Set(c)
	want(t, tr, "+ns/b:p80; +ns/c:p80 frontless")
	if p := tr.Services()[1].Problems; len(p) != 1 || p[0].Why != model.WhyFrontendTaken || !strings.Contains(p[0].Detail, "belongs to Service ns/b") {
		t.Errorf("problems: %v", p)
	}
	tr.Set(a) // comes last, but before b by name
	want(t, tr, "+ns/a:p80; ~ns/b:p80 frontless")
	old := *c
	old.Created = time.Unix(1, 0) // known to be old: before those of unknown age
	tr.Set(&old)
	want(t, tr, "~ns/a:p80 frontless; ~ns/c:p80")
	tr.Delete(&model.Service{Name: name("c")})
	want(t, tr, "-ns/c:p80; ~ns/a:p80")
	tr.Set(service("a", "10.96.0.9", 80)) // moves away
	want(t, tr, "~ns/a:p80; ~ns/b:p80")
	tr.Delete(&model.Service{Name: name("b")})
	tr.Delete(&model.Service{Name: name("a")})
	want(t, tr, "-ns/a:p80; -ns/b:p80")
}

// Whatever the order of events, the holder of a contested address is the same.
func TestConflictsDoNotDependOnOrder(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		tr := track.New()
		tr.SetHost(host("z"))
		present := map[string]*model.Service{}
		for range 40 {
			n := string(rune('a' + rng.IntN(5)))
			if rng.IntN(3) == 0 {
				tr.Delete(&model.Service{Name: name(n)})
				delete(present, n)
			} else {
				s := service(n, fmt.Sprint("10.96.0.", 1+rng.IntN(2)), 80)
				if rng.IntN(2) == 0 {
					s.Created = time.Unix(int64(rng.IntN(3)), 0)
				}
				tr.Set(s)
				present[n] = s
			}
			if rng.IntN(3) == 0 {
				tr.Flush()
			}
		}
		tr.Flush()
		fresh := track.New()
		fresh.SetHost(host("z"))
		for _, s := range present {
			fresh.Set(s)
		}
		fresh.Flush()
		if got, want := fronts(tr), fronts(fresh); got != want {
			t.Fatalf("seed %d:\n got %s\nwant %s", seed, got, want)
		}
	}
}

func fronts(tr *track.Tracker) (s string) {
	for _, svc := range tr.Services() {
		for _, p := range svc.Ports {
			s += fmt.Sprint(p.ID, len(p.Frontends), " ")
		}
	}
	return s
}

func TestHostChangesTouchWhatTheyMust(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	for i := range 50 {
		n := fmt.Sprint("s", i)
		tr.Set(service(n, fmt.Sprint("10.96.0.", i), 80))
		tr.Set(slice(n, n, 80, "10.0.0.1", "10.0.0.2"))
	}
	hinted := slice("s7", "s7", 80, "10.0.0.1", "10.0.0.2")
	hinted.Endpoints[0].Hints = &model.Hints{Zones: []string{"z"}}
	hinted.Endpoints[1].Hints = &model.Hints{Zones: []string{"y"}}
	tr.Set(hinted)
	tr.Flush()
	before := tr.Stats().Resolved
	tr.SetHost(host("y"))
	want(t, tr, "~ns/s7:p80 10.0.0.2")
	if n := tr.Stats().Resolved - before; n != 1 {
		t.Errorf("a new zone resolved %d Services, want the one with hints", n)
	}
	ranges := host("y")
	ranges.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	tr.SetHost(ranges)
	want(t, tr, "")
	tr.SetHost(host("y"))
	want(t, tr, "")
	if n := tr.Stats().Resolved - before; n != 1 {
		t.Errorf("the same host again, or with ranges, resolved %d Services", n-1)
	}
}

// The work for one change must not depend on how many Services there are.
func TestCostFollowsChange(t *testing.T) {
	cost := func(services int) track.Stats {
		tr := track.New()
		tr.SetHost(host("z"))
		for i := range services {
			n := fmt.Sprint("s", i)
			tr.Set(service(n, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), 80))
			tr.Set(slice(n, n, 80, "10.0.0.1"))
		}
		tr.Flush()
		before := tr.Stats()
		tr.Set(slice("s5", "s5", 80, "10.0.0.2"))
		tr.Flush()
		after := tr.Stats()
		return track.Stats{Resolved: after.Resolved - before.Resolved, Deltas: after.Deltas - before.Deltas}
	}
	small, large := cost(100), cost(10000)
	if small != large || small.Resolved != 1 || small.Deltas != 1 {
		t.Errorf("one change: %+v at 100 Services, %+v at 10,000", small, large)
	}
}

func TestSlotsAreCarried(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	tr.KeepSlots(func(_ model.Proto, at netip.AddrPort, _ model.Origin) []netip.AddrPort {
		if at.Addr() != netip.MustParseAddr("10.96.0.1") {
			return nil
		}
		return []netip.AddrPort{netip.MustParseAddrPort("10.0.0.3:8080"), netip.MustParseAddrPort("10.0.0.1:8080")}
	})
	tr.Set(service("a", "10.96.0.1", 80))
	tr.Set(slice("s", "a", 80, "10.0.0.1", "10.0.0.2", "10.0.0.3"))
	want(t, tr, "+ns/a:p80 10.0.0.3 10.0.0.1 10.0.0.2") // as installed, the new one at the end
	tr.Set(slice("s", "a", 80, "10.0.0.1", "10.0.0.2", "10.0.0.4"))
	want(t, tr, "~ns/a:p80 10.0.0.4 10.0.0.1 10.0.0.2") // in the hole
	tr.Set(slice("s", "a", 80, "10.0.0.1", "10.0.0.2"))
	want(t, tr, "~ns/a:p80 10.0.0.2 10.0.0.1") // the last one in the hole
}

// A change of the addresses that are protected resolves only the Services that it
// decides about, by their own addresses or by their endpoints.
func TestPolicyTouchesWhatItDecides(t *testing.T) {
	tr := track.New()
	tr.SetHost(host("z"))
	for i := range 50 {
		n := fmt.Sprint("s", i)
		s := service(n, fmt.Sprint("10.96.0.", i), 80)
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr(fmt.Sprint("203.0.113.", i))}
		tr.Set(s)
		tr.Set(slice(n, n, 80, fmt.Sprint("10.0.0.", i)))
	}
	tr.Flush()
	before := tr.Stats().Resolved
	resolved := func(what string, want uint64) {
		t.Helper()
		if n := tr.Stats().Resolved - before; n != want {
			t.Errorf("%s resolved %d Services, want %d", what, n, want)
		}
		before = tr.Stats().Resolved
	}
	other := host("z")
	other.Guard.NodeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.200")}
	tr.SetHost(other)
	want(t, tr, "")
	resolved("an address of nobody", 0)
	mine := host("z")
	mine.Guard.NodeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("203.0.113.7")}
	mine.Guard.Broadcasts = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	tr.SetHost(mine)
	want(t, tr, "~ns/s7:p80 10.0.0.7; ~ns/s9:p80")
	resolved("an external IP and an endpoint", 2)
	if p := tr.Service(name("s7")).Problems; len(p) != 1 || p[0].Why != model.WhyNodeAddress {
		t.Errorf("problems: %v", p)
	}
	tr.SetHost(other)
	want(t, tr, "~ns/s7:p80 10.0.0.7; ~ns/s9:p80 10.0.0.9")
	resolved("the way back", 2)
	api := slice("kubernetes", "kubernetes", 443, "203.0.113.3")
	api.Name.Namespace = "default"
	tr.Set(api)
	want(t, tr, "~ns/s3:p80 10.0.0.3")
	tr.Delete(api)
	want(t, tr, "~ns/s3:p80 10.0.0.3")
	resolved("an API server that came and went", 2)
}

// A cluster IP that policy rejects keeps the address from no other Service, also where the
// Service that asks for it has no ports.
func TestRefusedClusterIPWithoutPorts(t *testing.T) {
	tr := track.New()
	h := host("z")
	h.Guard.NodeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.200")}
	tr.SetHost(h)
	tr.Set(service("a", "192.0.2.200"))
	b := service("b", "10.96.0.2", 80)
	b.Type, b.LoadBalancerIPs = model.LoadBalancer, h.Guard.NodeIPs
	tr.Set(b)
	tr.Flush()
	got := tr.Service(name("b"))
	if len(got.Problems) > 0 || len(got.Ports) != 1 || len(got.Ports[0].Frontends) != 2 {
		t.Errorf("%v %v", got.Ports, got.Problems)
	}
}

// Whatever the order of events, no Service has an external IP that is another one's
// cluster IP or rejected, and everybody else has theirs.
func TestRanksDoNotDependOnOrder(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		tr := track.New()
		some := func() *model.Host {
			h := host("z")
			h.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
			for i := range 3 {
				if rng.IntN(2) == 0 {
					h.Guard.NodeIPs = append(h.Guard.NodeIPs, netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + i)}))
				}
			}
			return h
		}
		last := some()
		tr.SetHost(last)
		present := map[string]*model.Service{}
		for range 40 {
			n := string(rune('a' + rng.IntN(5)))
			if rng.IntN(4) == 0 {
				last = some()
				tr.SetHost(last)
			}
			if rng.IntN(3) == 0 {
				tr.Delete(&model.Service{Name: name(n)})
				delete(present, n)
			} else {
				s := randomRanks(rng, n)
				tr.Set(s)
				present[n] = s
			}
			if rng.IntN(3) == 0 {
				tr.Flush()
			}
		}
		tr.Flush()
		fresh := track.New()
		fresh.SetHost(last)
		for _, s := range present {
			fresh.Set(s)
		}
		fresh.Flush()
		if got, want := held(tr), held(fresh); got != want {
			t.Fatalf("seed %d:\n got %s\nwant %s", seed, got, want)
		}
	}
}

func randomRanks(rng *rand.Rand, n string) *model.Service {
	ip := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + rng.IntN(5))}) }
	s := service(n, ip().String(), []uint16{80, 81, 30080}[rng.IntN(3)])
	s.Created = time.Unix(int64(1+rng.IntN(3)), 0)
	s.Type = model.LoadBalancer
	if rng.IntN(2) == 0 {
		s.ExternalIPs = []netip.Addr{ip()}
	}
	if rng.IntN(2) == 0 {
		s.LoadBalancerIPs = []netip.Addr{ip(), ip()}
	}
	if rng.IntN(3) == 0 {
		s.Ports[0].NodePort = 30080
	}
	return s
}

// held lists the holders of addresses, and the problems of the rest.
func held(tr *track.Tracker) (s string) {
	for _, svc := range tr.Services() {
		for _, p := range svc.Ports {
			for _, f := range p.Frontends {
				s += fmt.Sprint(p.ID, " ", f.Kind, " ", f.At, "\n")
			}
		}
		s += fmt.Sprintln(svc.Problems)
	}
	return s
}
