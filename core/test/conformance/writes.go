// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/track"
)

const (
	changesPerWorld   = 12
	packetsPerChange  = 32
	writesPerCommit   = 64  // that are looked at, at its beginning and at its end; between those one of as many
	endpointsPerWrite = 256 // that packets may reach: those that reach more are sent after later writes
)

// EachWrite changes worlds, and sends packets after every single op: none reaches an
// endpoint that it reaches neither before the change nor after it, and one that has endpoints before
// and after has some in between. So it does not matter where a transaction or a process ends.
// A third of the changes is found by a process that starts. There are a quarter of the random worlds of Run.
func (s Suite[K, V]) EachWrite(t *testing.T) {
	worlds := s.Worlds
	if worlds == 0 {
		worlds = *worldCount / 4
	}
	if testing.Short() {
		worlds = min(worlds, 5)
	}
	ops, packets := 0, 0
	for seed := *worldFrom; seed < *worldFrom+uint64(worlds); seed++ {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			rng := NewRand(seed)
			w := s.through(t, rng, RandomWorld(rng), changesPerWorld, func(rng *rand.Rand, now Random) Random {
				next := now.Change(rng)
				next.Host, next.Config = now.Host, now.Config // what must stay at a change of the host is not known
				return next
			})
			ops, packets = ops+w.ops, packets+w.packets
		})
	}
	t.Logf("%d packets after %d ops", packets, ops)
}

// EachWriteOfPassing does the same with worlds in which an address passes from one Service to
// an older one and back. Their source ranges differ, or do not; the newer Service has each of the
// policies, the older one Cluster.
func (s Suite[K, V]) EachWriteOfPassing(t *testing.T, policies ...model.TrafficPolicy) {
	for name, of := range passing(policies) {
		t.Run(name, func(t *testing.T) {
			n := 0
			s.through(t, NewRand(1), of[0], 4, func(*rand.Rand, Random) Random {
				n++
				return of[n%2]
			})
		})
	}
}

// passing are pairs of worlds: in the second, an older Service has a load balancer's address that is
// another's in the first.
func passing(policies []model.TrafficPolicy) map[string][2]Random {
	host, c := randomHost(NewRand(1))
	host.Pods = model.PodMatch{CIDRs: prefixes("10.244.1.0/24")}
	ranges := map[string][]netip.Prefix{"open": nil, "some": prefixes("198.51.100.0/24"), "others": prefixes("192.0.2.0/24 203.0.113.0/24 10.244.1.0/24"), "within": prefixes("198.51.100.0/28 192.0.2.0/24 10.244.0.0/16")}
	service := func(i int, policy model.TrafficPolicy, allow []netip.Prefix) (*model.Service, *model.Slice) {
		s := &model.Service{
			Name: model.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", i)}, Type: model.LoadBalancer, External: policy,
			Created: time.Unix(1_700_000_000-int64(i), 0), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})},
			LoadBalancerIPs: addrs("203.0.113.%d", 1), Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
			Restricted: allow != nil, SourceRanges: allow,
		}
		slice := &model.Slice{Name: model.SliceName{Namespace: "default", Name: s.Name.Name}, Service: s.Name.Name, Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}}
		for node, pod := range map[string]string{"node-1": "10.244.1.%d", "node-2": "10.244.2.%d"} {
			e := model.SliceEndpoint{Addr: netip.MustParseAddr(fmt.Sprintf(pod, 10+i)), Node: node, State: model.Ready | model.Serving}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		return s, slice
	}
	all := map[string][2]Random{}
	for from, had := range ranges {
		for to, has := range ranges {
			for _, policy := range policies {
				a, itsSlice := service(1, policy, had)
				b, bsSlice := service(2, model.Cluster, has)
				first := Random{Host: host, Config: c, Services: []*model.Service{a}, Slices: []*model.Slice{itsSlice}}
				second := first
				second.Services, second.Slices = []*model.Service{a, b}, []*model.Slice{itsSlice, bsSlice}
				all[fmt.Sprintf("passing-%s-%s-%d", from, to, policy)] = [2]Random{first, second}
			}
		}
	}
	return all
}

// through takes a world through changes.
func (s Suite[K, V]) through(t *testing.T, rng *rand.Rand, now Random, changes int, following func(*rand.Rand, Random) Random) *writes[K, V] {
	w := &writes[K, V]{Driver: memory.New[K](s.Compiler.Equal, dataplane.Limits{Batch: rng.IntN(3) * 7})}
	var b dataplane.Backend
	var tracker *track.Tracker
	start := func() {
		b, tracker = dataplane.New(s.Compiler, w), track.New()
		if err := b.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		tracker.KeepSlots(b.Slots)
		now.Feed(tracker, Random{})
		b.SetHost(now.Host)
	}
	sync := func() {
		b.Update(tracker.Flush())
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start()
	sync()
	for change := range changes {
		next := following(rng, now)
		w.sent = s.choose(rng, append(Probes(now.Host, now.Ports()), Probes(next.Host, next.Ports())...),
			s.Sim(w.Objects, now.Host), s.Sim(s.objects(t, next), now.Host))
		w.look = func(op ledger.Op[K, V]) {
			is, endpoints := s.Sim(w.Objects, now.Host), 0
			for range w.sent {
				w.packets++
				p := w.sent[w.packets%len(w.sent)]
				o := is(p.Packet)
				if wrong := p.wrong(o); wrong != "" {
					t.Errorf("change %d, after %s %v: %s %s", change, op.Verb, op.Key, Show(p.Packet), wrong)
				}
				if endpoints += len(o.Endpoints); endpoints > endpointsPerWrite {
					break
				}
			}
		}
		if rng.IntN(3) == 0 {
			now = next
			start()
		} else {
			next.Feed(tracker, now)
			now = next
		}
		sync()
		w.look = nil
	}
	return w
}

// choose returns some packets, most of which a change concerns.
func (s Suite[K, V]) choose(rng *rand.Rand, from []oracle.Packet, was, will func(oracle.Packet) oracle.Outcome) (all []sent) {
	rng.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	for _, p := range from {
		before, after := was(p), will(p)
		if Diff(before, after) != "" || before.Fate == oracle.Forward && len(all)%4 == 0 {
			all = append(all, sent{p, before, after})
		}
		if len(all) == packetsPerChange {
			break
		}
	}
	return all
}

func (s Suite[K, V]) objects(t *testing.T, w Random) map[K]V {
	out, err := compile(s.Compiler, w.Host, w.Ports())
	if err != nil {
		t.Fatal(err)
	}
	return out.objects
}

// writes is a data plane that is looked at after each op.
type writes[K comparable, V any] struct {
	*memory.Driver[K, V]
	look         func(ledger.Op[K, V]) // nil for not
	sent         []sent
	ops, packets int
}

func (w *writes[K, V]) Commit(ctx context.Context, ops []ledger.Op[K, V]) (errs []error) {
	for i, op := range ops {
		errs = append(errs, w.Driver.Commit(ctx, ops[i:i+1])...)
		begins, ends := i < writesPerCommit, i >= len(ops)-writesPerCommit
		if w.look != nil && (begins || ends || i%writesPerCommit == 0) {
			w.ops++
			w.look(op)
		}
	}
	return errs
}

// sent is a packet, with what becomes of it before a change and after it.
type sent struct {
	oracle.Packet
	before, after oracle.Outcome
}

// wrong returns what must not become of a packet meanwhile.
func (p sent) wrong(is oracle.Outcome) string {
	for _, e := range is.Endpoints {
		to := func(o oracle.Target) bool { return o.Addr == e.Addr }
		if !slices.ContainsFunc(p.before.Endpoints, to) && !slices.ContainsFunc(p.after.Endpoints, to) {
			return fmt.Sprintf("reaches %s, which it must not before (%s) or after (%s)", e.Addr, show(p.before), show(p.after))
		}
	}
	if p.before.Fate == oracle.Forward && p.after.Fate == oracle.Forward && (is.Fate != oracle.Forward || len(is.Endpoints) == 0) {
		return fmt.Sprintf("has no endpoint: %s, before %s, after %s", show(is), show(p.before), show(p.after))
	}
	return ""
}
