// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/test/growth"
	"github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/track"
)

// Large is a Service with its slices, as large as API objects can be or as resolve's
// limits allow.
type Large struct {
	Name    string
	Service *model.Service
	Slices  []*model.Slice
}

// LargeServices returns such Services, or a part of each. Their cost delays all other
// Services.
func LargeServices(part int) []Large {
	large := func(name string, addresses, ports, slices, endpoints int, more ...func(*model.Service)) Large {
		s := &model.Service{
			Name: model.ServiceName{Namespace: "large", Name: "large"}, Type: model.LoadBalancer,
			ClusterIPs: numbered("10.96.0.1", 1), ExternalIPs: numbered("198.18.0.0", addresses-1),
		}
		for i := range ports {
			s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprintf("p%d", i), Proto: model.TCP, Port: uint16(i + 1)})
		}
		for _, change := range more {
			change(s)
		}
		l := Large{Name: name, Service: s}
		for i := range slices {
			l.Slices = append(l.Slices, largeSlice(s, i, endpoints))
		}
		return l
	}
	udp := func(s *model.Service) {
		for i := range s.Ports {
			s.Ports[i].Proto, s.Ports[i].NodePort = model.UDP, uint16(30000+i)
		}
	}
	dual := func(s *model.Service) { s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00::1")) }
	ranges := func(ips, n int) func(*model.Service) {
		return func(s *model.Service) {
			s.LoadBalancerIPs, s.Restricted = numbered("203.0.0.0", ips), true
			for _, a := range numbered("100.64.0.0", n) {
				s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(a, 32))
			}
		}
	}
	return []Large{
		large("40,000 addresses", 40_000/part, 1, 1, 10),
		large("the most addresses", resolve.MaxAddresses/part, 2, 1, 15),
		large("10,000 ports", 1, 10_000/part, 1, 10),
		large("the most ports", 1, resolve.MaxPorts/2/part, 1, 20, dual),
		large("1,000 ports x 1,000 endpoints", 1, 1_000/part, 1, 1_000),
		large("100 ports x 1,000,000 endpoints", 1, 100, 1_000/part, 1_000),
		large("the most endpoints", 1, 1, 100/part, 1_000),
		large("as many for UDP", 1, 1, 100/part, 1_000, udp),
		large("the most source ranges", 1, 1, 1, 10, ranges(1, resolve.MaxEntries/part)),
		large("source ranges of 1,000 addresses", 1, 1, 1, 10, ranges(999/part, 1_000)),
	}
}

func largeSlice(s *model.Service, i, endpoints int) *model.Slice {
	slice := &model.Slice{
		Name: model.SliceName{Namespace: s.Name.Namespace, Name: fmt.Sprintf("large-%d", i)}, Service: s.Name.Name,
	}
	for _, p := range s.Ports {
		slice.Ports = append(slice.Ports, model.SlicePort{Name: p.Name, Proto: p.Proto, Port: 8000 + p.Port})
	}
	for _, a := range numbered(fmt.Sprintf("10.%d.%d.0", 100+i*endpoints>>16, i*endpoints>>8&0xff), endpoints) {
		slice.Endpoints = append(slice.Endpoints, model.SliceEndpoint{Addr: a, Node: "elsewhere", State: model.Ready | model.Serving})
	}
	return slice
}

// numbered returns n addresses that follow one another.
func numbered(first string, n int) []netip.Addr {
	all := make([]netip.Addr, n)
	for i, a := 0, netip.MustParseAddr(first); i < n; i, a = i+1, a.Next() {
		all[i] = a
	}
	return all
}

// largeTime is how long a Service of any size may delay others: CPU time without that of
// the data plane itself.
const largeTime = 50 * time.Millisecond

// large checks that the cost of any Service is bounded: in objects, and in time, which must
// not be quadratic. A machine that does much else counts up to twice the time: so twice the
// limit fails the test, and only where ten attempts more are no better.
func (s Suite[K, V]) large(t *testing.T) {
	const parts = 32
	for i, l := range LargeServices(1) {
		t.Run(l.Name, func(t *testing.T) {
			part := LargeServices(parts)[i]
			var best []time.Duration // of each step
			whole := func() []time.Duration {
				took := s.live(t, l)
				for step := range took {
					if len(best) <= step {
						best = append(best, took[step])
					}
					best[step] = min(best[step], took[step])
				}
				return took
			}
			if err := growth.Linear(parts, func(n int) []time.Duration {
				if n == parts {
					return whole()
				}
				return s.live(t, part)
			}); err != nil {
				t.Error(err)
			}
			for range 10 {
				if slices.Max(best) > 2*largeTime {
					whole()
				}
			}
			if t.Logf("least of each step: %s (at most %s)", best, largeTime); slices.Max(best) > 2*largeTime {
				t.Errorf("delays others by %s, the limit is %s", slices.Max(best), largeTime)
			}
		})
	}
}

// clocked is a data plane in memory that measures itself.
type clocked[K comparable, V any] struct {
	*memory.Driver[K, V]
	took time.Duration
}

func (d *clocked[K, V]) Commit(ctx context.Context, ops []ledger.Op[K, V]) (errs []error) {
	d.took += growth.Timed(func() { errs = d.Driver.Commit(ctx, ops) })
	return errs
}

// live creates, changes and deletes a Service, with a data plane in memory, and
// returns how long each step takes.
func (s Suite[K, V]) live(t *testing.T, l Large) (took []time.Duration) {
	const objects = 4 * resolve.MaxEntries // an entry takes one or two objects
	host := &model.Host{Name: "node-1", IPs: numbered("192.0.2.1", 2), Pods: model.PodMatch{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
	host.NodePorts.Prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	d := &clocked[K, V]{Driver: memory.New[K](s.Compiler.Equal, dataplane.Limits{})}
	b := dataplane.New(s.Compiler, d)
	defer b.Close()
	if err := b.Adopt(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(host)
	tracker := track.New()
	tracker.SetHost(host)
	step := func(what string, do func()) {
		before := d.Ops
		d.took = 0
		var deltas []model.Delta
		core := growth.Timed(func() {
			do()
			deltas = tracker.Flush()
			b.Update(deltas)
		})
		all := core + growth.Timed(func() {
			flows.Stale(host, deltas)
			if _, err := b.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
		})
		all -= d.took
		took = append(took, all)
		t.Logf("%s: %d ports, %d objects, %s, %s with the sync, %s the data plane in memory", what, len(deltas), d.Ops-before, core, all, d.took)
		if d.Ops-before > objects || len(d.Objects) > objects {
			t.Errorf("%s: %d objects written, %d are there, at most %d may be", what, d.Ops-before, len(d.Objects), objects)
		}
		if n := len(tracker.NewProblems()); n > model.MaxProblems+1 {
			t.Errorf("%s: %d problems are told", what, n)
		}
	}
	// Each slice is an event of its own, and others' events come between two of them.
	stored := time.Duration(0)
	for _, slice := range l.Slices {
		stored = max(stored, growth.Timed(func() { tracker.Set(slice) }))
	}
	took = append(took, stored)
	t.Logf("one slice of %d stored: at most %s", len(l.Slices), stored)
	step("made", func() { tracker.Set(l.Service) })
	step("an endpoint replaced", func() {
		slice := *l.Slices[0]
		slice.Endpoints = append([]model.SliceEndpoint{}, slice.Endpoints...)
		slice.Endpoints[0].Addr = netip.MustParseAddr("10.99.0.1")
		tracker.Set(&slice)
	})
	step("gone", func() { tracker.Delete(l.Service) })
	return took
}
