// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
)

func in(namespace string, s *model.Service) *model.Service {
	s.Name.Namespace = namespace
	return s
}

// endpoints are those of a slice, the first ones of some that all share.
func endpoints(namespace, service string, of []model.SliceEndpoint) *model.Slice {
	return &model.Slice{
		Name: model.SliceName{Namespace: namespace, Name: service + "-1"}, Service: service,
		Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}}, Endpoints: of,
	}
}

func readyEndpoints(n int) []model.SliceEndpoint {
	all := make([]model.SliceEndpoint, n)
	for i, a := 0, netip.MustParseAddr("10.244.0.1"); i < n; i, a = i+1, a.Next() {
		all[i] = model.SliceEndpoint{Addr: a, State: model.Ready | model.Serving}
	}
	return all
}

// atOnce does something on the engine's goroutine, so that all of it has arrived before the next turn.
func (b *bench) atOnce(t testing.TB, f func()) {
	t.Helper()
	_, err := b.SnapshotOf(t.Context(), func(*track.Tracker) []*track.View { f(); return nil })
	if err != nil {
		t.Fatal(err)
	}
}

// served returns how many Service ports of another namespace than a Service's were programmed up to the sync
// that programmed that, it included; and how many syncs those were.
func served(syncs []engine.Sync, victim model.ServiceName) (ports, turns int) {
	for _, s := range syncs {
		turns++
		found := false
		for _, d := range s.Applied {
			if n := d.ID().Service; n == victim {
				found = true
			} else if n.Namespace != victim.Namespace {
				ports++
			}
		}
		if found {
			return ports, turns
		}
	}
	return ports, 0
}

// A tenant edits a thousand large Services at once, and then another one changes an endpoint. That
// change is in the first turn, beside no more of the tenant's than fit one.
func TestManyObjectsOfOneNamespaceDelayNoOther(t *testing.T) {
	const services, each = 1000, 300
	all := readyEndpoints(each)
	for _, c := range []struct {
		namespaces int
		turns      int // that the victim waits for at most, its own included
	}{{1, 1}, {10, 1}, {100, 7}} {
		t.Run(fmt.Sprint(c.namespaces, " namespaces"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, nil)
				edit := func(of []model.SliceEndpoint) {
					for i := range services {
						b.Set(endpoints(fmt.Sprint("tenant-", i%c.namespaces), fmt.Sprint("s", i), of))
					}
				}
				for i := range services {
					b.Set(in(fmt.Sprint("tenant-", i%c.namespaces), service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", 1+i/250, i%250))))
				}
				edit(all)
				b.Set(in("victim", service("v", "10.96.0.1")))
				b.Set(endpoints("victim", "v", all[:1]))
				b.Synced(true)
				synctest.Wait()
				if len(b.syncs) != 1 {
					t.Errorf("the start took %d syncs", len(b.syncs))
				}
				b.syncs = nil

				b.atOnce(t, func() {
					edit(all[1:])
					b.Set(endpoints("victim", "v", all[:2]))
				})
				synctest.Wait()
				ports, turns := served(b.syncs, model.ServiceName{Namespace: "victim", Name: "v"})
				t.Logf("%d of %d Services of others up to the victim's, in turn %d of %d", ports, services, turns, len(b.syncs))
				if most := c.turns * (resolve.MaxEntries/each + 1); ports > most || turns > c.turns {
					t.Errorf("%d Services of others came first, want %d; turn %d, want %d", ports, most, turns, c.turns)
				}
				for i := range services {
					if got := b.kernel.Objects[fmt.Sprintf("10.96.%d.%d:80", 1+i/250, i%250)]; strings.Count(got, ":") != each-1 {
						t.Fatalf("the tenant's change of Service %d is not programmed: %s", i, got)
					}
				}
				if s := b.Status(); s.Done != s.Seen || !s.QueuedAt.IsZero() {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

// A tenant's many changes fill turns of their own: beside another namespace's one change is a share of a turn at most.
func TestFewChangesDoNotWaitForManyInOneTurn(t *testing.T) {
	const services, most = 300, 10
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		all := readyEndpoints(2)
		for i := range services {
			b.Set(in("tenant", service(fmt.Sprint("s", i), fmt.Sprintf("10.96.%d.%d", 1+i/250, i%250))))
			b.Set(endpoints("tenant", fmt.Sprint("s", i), all[:1]))
		}
		b.Set(in("victim", service("v", "10.96.0.1")))
		b.Set(endpoints("victim", "v", all[:1]))
		b.begin()
		b.atOnce(t, func() {
			for i := range services {
				b.Set(endpoints("tenant", fmt.Sprint("s", i), all))
			}
			b.Set(endpoints("victim", "v", all))
		})
		synctest.Wait()
		ports, turns := served(b.syncs, model.ServiceName{Namespace: "victim", Name: "v"})
		if turns != 1 || ports > most {
			t.Errorf("the victim's change is in turn %d, beside or after %d of the tenant's, want %d at most", turns, ports, most)
		}
		if turns := len(b.syncs); turns > services*15/400 {
			t.Errorf("%d turns: those of one namespace alone have room for more than a share", turns)
		}
	})
}

// What a Service had counts as what it gets: a tenant's Services that give up many addresses at once, or take
// them right after a change of their endpoints, come in turns as those that have them do.
func TestAddressesThatGoFillATurn(t *testing.T) {
	const services, addresses = 60, 999
	external := func(i int) (all []netip.Addr) {
		a := netip.AddrFrom4([4]byte{203, byte(i), 0, 0})
		for range addresses {
			a = a.Next()
			all = append(all, a)
		}
		return all
	}
	for _, takes := range []bool{false, true} {
		t.Run(map[bool]string{false: "gives up", true: "takes"}[takes], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, nil)
				all := readyEndpoints(2)
				set := func(i int, has bool) {
					s := in("tenant", service(fmt.Sprint("s", i), fmt.Sprintf("10.96.1.%d", i)))
					if has {
						s.ExternalIPs = external(i)
					}
					b.Set(s)
				}
				for i := range services {
					set(i, !takes)
					b.Set(endpoints("tenant", fmt.Sprint("s", i), all[:1]))
				}
				b.Set(in("victim", service("v", "10.96.0.1")))
				b.Set(endpoints("victim", "v", all[:1]))
				b.begin()
				b.atOnce(t, func() {
					for i := range services {
						if takes {
							b.Set(endpoints("tenant", fmt.Sprint("s", i), all[1:]))
						}
						set(i, takes)
					}
					b.Set(endpoints("victim", "v", all))
				})
				synctest.Wait()
				ports, turns := served(b.syncs, model.ServiceName{Namespace: "victim", Name: "v"})
				t.Logf("%d of %d Services came before the victim's, in turn %d of %d", ports, services, turns, len(b.syncs))
				if most := resolve.MaxEntries/addresses/resolve.Entries(service("one", "10.96.0.2"), 1) + 1; ports > most || turns != 1 {
					t.Errorf("%d Services of another namespace came before, want at most %d; in turn %d", ports, most, turns)
				}
			})
		})
	}
}

// Source ranges are entries of a data plane, too.
func TestSourceRangesFillATurn(t *testing.T) {
	const services, ranges, most = 20, 1500, 2000
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		set := func(i, n int) {
			s := in("tenant", service(fmt.Sprint("s", i), fmt.Sprintf("10.96.1.%d", i)))
			s.Type, s.Restricted, s.LoadBalancerIPs = model.LoadBalancer, true, []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
			for a := netip.MustParseAddr("100.64.0.0"); len(s.SourceRanges) < n; a = a.Next().Next() {
				s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(a, 32))
			}
			b.Set(s)
		}
		for i := range services {
			set(i, 1)
			b.Set(endpoints("tenant", fmt.Sprint("s", i), readyEndpoints(1)))
		}
		b.Synced(true)
		synctest.Wait()
		b.syncs = nil
		b.atOnce(t, func() {
			for i := range services {
				set(i, ranges)
			}
		})
		synctest.Wait()
		for i, s := range b.syncs {
			n := 0
			for _, d := range s.Applied {
				for f := range d.New.Frontends {
					n += len(d.New.Frontends[f].Allow)
				}
			}
			if n > most {
				t.Errorf("sync %d wrote %d source ranges, want %d at most", i+1, n, most)
			}
		}
		if len(b.syncs) < services*ranges/most {
			t.Errorf("%d syncs", len(b.syncs))
		}
	})
}

// One Service that is larger than a turn teaches how much an entry costs, and not that a turn has room for
// nothing: many small changes of another namespace fit the turn after it.
func TestALargeServiceLeavesTurnsTheirSize(t *testing.T) {
	const entry, services, large = 8 * time.Microsecond, 25, 4
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		b := startOn(t, kernel, nil)
		all := readyEndpoints(resolve.MaxEntries)
		write := func(i, n int) { b.Set(endpoints("tenant", fmt.Sprint("s", i), all[n%2:])) }
		for i := range large {
			b.Set(in("tenant", service(fmt.Sprint("s", i), fmt.Sprintf("10.96.1.%d", i))))
			write(i, 0)
		}
		for i := range services {
			b.Set(in("victim", service(fmt.Sprint("v", i), fmt.Sprintf("10.96.2.%d", i))))
			b.Set(endpoints("victim", fmt.Sprint("v", i), all[:1]))
		}
		b.Synced(true)
		synctest.Wait()
		kernel.Fail = func(op ledger.Op[string, string]) error {
			time.Sleep(time.Duration(strings.Count(op.New, ":")) * entry)
			return nil
		}
		for n := range 6 {
			for i := range large {
				write(i, n+1)
			}
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		b.syncs = nil
		for i := range large {
			write(i, 1)
		}
		time.Sleep(time.Millisecond) // the first of them is being written
		for i := range services {
			b.Set(endpoints("victim", fmt.Sprint("v", i), all[:2]))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		turns := 0
		for i, s := range b.syncs {
			if slices.ContainsFunc(s.Applied, func(d model.Delta) bool { return d.ID().Service.Namespace == "victim" }) {
				turns = i + 1
			}
		}
		t.Logf("the victim's %d changes were programmed within %d turns", services, turns)
		if turns > 3 { // that which was under way, and the victim's own
			t.Errorf("the victim's %d changes took %d turns", services, turns)
		}
	})
}

// What says something about all that came before is done after it, and what is asked about the node
// does not wait for a namespace.
func TestWhatComesLastWaitsAndQuestionsDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.9.9:80"] = "of an input that could not be decoded"
		deleted := 0
		kernel.Fail = func(op ledger.Op[string, string]) error {
			if op.Verb == ledger.Delete {
				deleted++
			}
			return nil
		}
		b := startOn(t, kernel, nil)
		b.Synced(false)
		synctest.Wait()
		const services = 100
		all := readyEndpoints(1000)
		asked := 0
		b.atOnce(t, func() {
			for i := range services {
				b.Set(in("tenant", service(fmt.Sprint("s", i), fmt.Sprintf("10.96.1.%d", i))))
				b.Set(endpoints("tenant", fmt.Sprint("s", i), all))
			}
			b.Set(service("late", "10.96.9.9"))
			b.Synced(true) // the next one is not in doubt: it has come
			go func() {
				_, err := b.SnapshotOf(t.Context(), func(*track.Tracker) []*track.View { asked = len(b.syncs); return nil })
				if err != nil {
					t.Error(err)
				}
			}()
		})
		synctest.Wait()
		if len(b.syncs) < 4 || asked > len(b.syncs)/2 {
			t.Errorf("%d syncs, the answer came after %d", len(b.syncs), asked)
		}
		if deleted != 0 {
			t.Error("an object was deleted before the Service that needs it was looked at")
		}
	})
}

// A namespace whose changes never end makes the node neither unhealthy nor slow for others.
func TestATenantThatNeverStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const services, changes = 100, 4
		all := readyEndpoints(1000)
		var b *bench
		turns, at := 0, time.Time{} // when the victim's change was programmed
		edit := func() {
			for i := range services {
				b.Set(endpoints("tenant", fmt.Sprint("s", i), all[turns%2:]))
			}
		}
		done := make(chan struct{})
		b = start(t, func(o *engine.Options) {
			o.Hooks.Synced = func(s engine.Sync) {
				turns++
				time.Sleep(40 * time.Millisecond) // what a turn takes
				for _, d := range s.Applied {
					if d.ID().Service.Namespace == "victim" {
						at = time.Now()
					}
				}
				select {
				case <-done:
				default:
					edit()
				}
			}
		})
		for i := range services {
			b.Set(in("tenant", service(fmt.Sprint("s", i), fmt.Sprintf("10.96.1.%d", i))))
		}
		edit()
		b.Set(in("victim", service("v", "10.96.0.1")))
		b.Synced(true)
		for i := range changes {
			time.Sleep(300 * time.Millisecond)
			before := time.Now()
			b.Set(endpoints("victim", "v", all[:1+i%2]))
			time.Sleep(200 * time.Millisecond)
			if took := at.Sub(before); took <= 0 || took > 100*time.Millisecond {
				t.Errorf("change %d of the victim took %s", i, took)
			}
			if s := b.Status(); time.Since(s.QueuedAt) > 200*time.Millisecond {
				t.Errorf("queued for %s", time.Since(s.QueuedAt))
			}
		}
		close(done)
		time.Sleep(time.Minute)
		if s := b.Status(); s.Done != s.Seen || !s.QueuedAt.IsZero() {
			t.Errorf("at the end: %+v", s)
		}
	})
}

// FuzzTenant has a namespace write many objects at random, and measures, by counters, what that costs
// the change of another one: no more than the entries of a turn and one Service come before it.
func FuzzTenant(f *testing.F) {
	f.Add(uint64(1), uint16(39), uint16(39), uint8(3))
	f.Add(uint64(2), uint16(30), uint16(3), uint8(3))
	f.Add(uint64(3), uint16(10), uint16(20), uint8(1))
	f.Fuzz(func(t *testing.T, seed uint64, objects, size uint16, ports uint8) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			n, most := 1+int(objects)%40, 1+int(size)%40
			pool := readyEndpoints(most)
			entries := map[model.ServiceName]int{}
			const turn = 100
			var all []engine.Sync
			var b *bench
			b = start(t, func(o *engine.Options) {
				o.Hooks.Synced = func(s engine.Sync) { b.syncs, all = append(b.syncs, s), append(all, s) }
			})
			b.atOnce(t, func() { b.SetTurn(turn) })
			b.Set(in("victim", service("v", "10.96.0.1")))
			b.Set(endpoints("victim", "v", pool[:1]))
			write := func(i, what int) {
				name := fmt.Sprint("s", i)
				switch what {
				case 0:
					b.Delete(&model.Service{Name: model.ServiceName{Namespace: "tenant", Name: name}})
				case 1:
					b.Delete(&model.Slice{Name: model.SliceName{Namespace: "tenant", Name: name + "-1"}})
				case 2, 3:
					s := in("tenant", service(name, fmt.Sprintf("10.97.%d.%d", i/250, i%250)))
					for p := range int(ports) % 4 {
						s.Ports = append(s.Ports, model.ServicePort{Proto: model.TCP, Port: uint16(1000 + p)})
					}
					b.Set(s)
				default:
					b.Set(endpoints("tenant", name, pool[:1+rng.IntN(most)]))
				}
			}
			for i := range n {
				write(i, 2)
				write(i, 4)
			}
			b.Synced(true)
			synctest.Wait()
			b.syncs = nil
			b.atOnce(t, func() {
				for range 2 * n {
					write(rng.IntN(n), rng.IntN(6))
				}
				b.Set(endpoints("victim", "v", readyEndpoints(2)))
				for range n {
					write(rng.IntN(n), rng.IntN(6))
				}
			})
			synctest.Wait()
			before := 0
			for _, s := range b.syncs {
				own := false
				for _, d := range s.Applied {
					own = own || d.ID().Service.Namespace == "victim"
					for _, p := range []*model.Port{d.Old, d.New} {
						if p != nil {
							for _, pool := range p.Pools() {
								before += len(p.Frontends) * len(pool.Endpoints)
							}
							entries[d.ID().Service] += len(p.Frontends)
						}
					}
				}
				if own {
					break
				}
			}
			inEffect(t, all)
			t.Logf("%d entries of %d Services came before, in %d syncs", before, len(entries), len(b.syncs))
			// The old state of a port counts as well as the new one.
			if limit := 2 * (turn + most); before > limit {
				t.Errorf("%d entries of the tenant came before the victim's, of %d Services, want %d", before, len(entries), limit)
			}
			if got := b.kernel.Objects["10.96.0.1:80"]; strings.Count(got, ":") != 2 {
				t.Errorf("the victim has %s", got)
			}
		})
	})
}
