// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

const (
	manyPorts = 64
	eachPort  = 468 // endpoints that resolve leaves each of so many ports

	// mostPart is how many entries of a Service that has more ports than fit a turn are written at a time.
	mostPart = 500

	others = 2 // objects besides: the base, and the victim's
)

// manyPortService has 64 ports, whose names have a prefix, and may be those of others.
func manyPortService(prefix string, rotated int) *model.Service {
	s := in("tenant", service("large", "10.96.1.1"))
	s.Ports = nil
	for i := range manyPorts {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint(prefix, (i+rotated)%manyPorts), Proto: model.TCP, Port: uint16(1000 + i)})
	}
	return s
}

// manyPortSlice has more endpoints than each of those ports gets.
func manyPortSlice(prefix string, first string) *model.Slice {
	s := &model.Slice{Name: model.SliceName{Namespace: "tenant", Name: "large-1"}, Service: "large"}
	for i := range manyPorts {
		s.Ports = append(s.Ports, model.SlicePort{Name: fmt.Sprint(prefix, i), Proto: model.TCP, Port: uint16(8000 + i)})
	}
	for a := netip.MustParseAddr(first); len(s.Endpoints) < 1000; a = a.Next() {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: a, State: model.Ready | model.Serving})
	}
	return s
}

// written is how many entries a sync has written of a namespace.
func written(s engine.Sync, namespace string) (n int) {
	for _, d := range s.Applied {
		if d.ID().Service.Namespace != namespace {
			continue
		}
		p := d.New
		if p == nil {
			p = d.Old
		}
		for _, pool := range p.Pools() {
			n += len(p.Frontends) * len(pool.Endpoints)
		}
	}
	return n
}

// inEffect follows the changes that syncs have reported: each begins where the one before of its port has ended.
func inEffect(t *testing.T, syncs []engine.Sync) map[model.PortID]*model.Port {
	t.Helper()
	ports := map[model.PortID]*model.Port{}
	for _, s := range syncs {
		for _, d := range s.Applied {
			if id := d.ID(); ports[id] != d.Old {
				t.Errorf("a change of %s does not begin where the one before has ended", id)
			}
			ports[d.ID()] = d.New
		}
	}
	return ports
}

// largeBench has a Service of many ports in one namespace, and one of a single port in another. What is done
// when a sync has ended, by its number from 1 on, is in then.
func largeBench(t *testing.T, then map[int]func()) (b *bench, all *[]engine.Sync) {
	all = new([]engine.Sync)
	b = start(t, func(o *engine.Options) {
		o.Hooks.Synced = func(s engine.Sync) {
			*all = append(*all, s)
			b.syncs = append(b.syncs, s)
			if f := then[len(b.syncs)]; f != nil {
				f()
			}
		}
	})
	b.Set(in("victim", service("v", "10.96.0.1")))
	b.Set(endpoints("victim", "v", readyEndpoints(1)))
	return b, all
}

// begin ends what comes before a test: the first sync.
func (b *bench) begin() {
	b.Synced(true)
	synctest.Wait()
	b.syncs = nil
}

// A namespace changes one Service that has as much as a Service may. Its ports are programmed in parts, and another
// namespace's change that comes meanwhile is in the next one.
func TestALargeServiceLetsOthersInBetween(t *testing.T) {
	for _, c := range []struct {
		name       string
		there      bool
		do         func(b *bench)
		programmed int // ports at the end
		together   int // ports that have a frontend in common
	}{
		{"comes", false, func(b *bench) {
			b.Set(manyPortService("p", 0))
			b.Set(manyPortSlice("p", "10.245.0.1"))
		}, manyPorts, 1},
		{"changes", true, func(b *bench) { b.Set(manyPortSlice("p", "10.246.0.1")) }, manyPorts, 1},
		{"goes", true, func(b *bench) { b.Delete(&model.Service{Name: model.ServiceName{Namespace: "tenant", Name: "large"}}) }, 0, 1},
		{"renames its ports", true, func(b *bench) {
			b.Set(manyPortService("q", 0))
			b.Set(manyPortSlice("q", "10.245.0.1"))
		}, manyPorts, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				then := map[int]func(){}
				b, all := largeBench(t, then)
				if c.there {
					b.Set(manyPortService("p", 0))
					b.Set(manyPortSlice("p", "10.245.0.1"))
				}
				b.begin()
				if c.there && c.programmed > 0 {
					b.kernel.Do(func() {
						b.kernel.Fail = func(op ledger.Op[string, string]) error {
							if op.Verb == ledger.Delete {
								t.Errorf("%s is gone for a moment", op.Key)
							}
							return nil
						}
					})
				}
				const comes = 2 // the sync after which the victim's change comes
				then[comes] = func() { b.Set(endpoints("victim", "v", readyEndpoints(2))) }
				b.atOnce(t, func() { c.do(b) })
				synctest.Wait()
				most := 0
				for i, s := range b.syncs {
					n := written(s, "tenant")
					most = max(most, n)
					if written(s, "victim") > 0 && (i != comes || n > 0) {
						t.Errorf("the victim's change is in sync %d, beside %d entries of the tenant", i+1, n)
					}
				}
				t.Logf("%d syncs, of %d entries of the tenant at most", len(b.syncs), most)
				if limit := c.together * mostPart; most > limit {
					t.Errorf("a sync has %d entries of the tenant, want %d at most", most, limit)
				}
				if len(b.syncs) <= comes {
					t.Fatalf("%d syncs", len(b.syncs))
				}
				if got := b.kernel.Objects["10.96.0.1:80"]; strings.Count(got, ":") != 2 {
					t.Errorf("the victim has %s", got)
				}
				if got := len(b.kernel.Objects) - others; got != c.programmed {
					t.Errorf("%d ports of the tenant are programmed, want %d", got, c.programmed)
				}
				for at, got := range b.kernel.Objects {
					if strings.HasPrefix(at, "10.96.1.") && strings.Count(got, ":") != eachPort {
						t.Errorf("%s has %d endpoints", at, strings.Count(got, ":"))
					}
				}
				inEffect(t, *all)
				if s := b.Status(); s.Done != s.Seen || !s.QueuedAt.IsZero() || s.Services[model.Failing] > 0 {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

// What moves between ports is in one transaction: ports that pass their frontends on in a ring are not cut.
func TestWhatMovesIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, all := largeBench(t, nil)
		b.Set(manyPortService("p", 0))
		b.Set(manyPortSlice("p", "10.245.0.1"))
		b.begin()
		b.Set(manyPortService("p", 1))
		synctest.Wait()
		if len(b.syncs) != 1 {
			t.Errorf("%d syncs", len(b.syncs))
		}
		inEffect(t, *all)
	})
}

// An address of a Service that goes is another namespace's at once, and is never without an owner, though the
// port that had it still waits.
func TestAnAddressMovesFromAPortThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		then := map[int]func(){}
		b, all := largeBench(t, then)
		b.Set(manyPortService("p", 0))
		b.Set(manyPortSlice("p", "10.245.0.1"))
		b.begin()
		const last = "10.96.1.1:1063"
		b.kernel.Do(func() {
			b.kernel.Fail = func(op ledger.Op[string, string]) error {
				if op.Key == last && op.Verb == ledger.Delete {
					t.Errorf("%s is gone for a moment", last)
				}
				return nil
			}
		})
		then[1] = func() {
			if b.kernel.Objects[last] == "" {
				t.Error("nothing waits")
			}
			heir := in("victim", service("heir", "10.96.1.1"))
			heir.Ports[0].Port = 1063
			b.Set(heir)
			b.Set(endpoints("victim", "heir", readyEndpoints(3)))
		}
		then[2] = func() {
			if got := b.kernel.Objects[last]; strings.Count(got, ":") != 3 {
				t.Errorf("%s has %s", last, got)
			}
		}
		b.Delete(&model.Service{Name: model.ServiceName{Namespace: "tenant", Name: "large"}})
		synctest.Wait()
		if len(b.syncs) < 4 || len(b.kernel.Objects) != others+1 {
			t.Errorf("%d syncs; %d objects", len(b.syncs), len(b.kernel.Objects))
		}
		inEffect(t, *all)
	})
}

// What changes the whole node comes with all that waits.
func TestTheHostChangesWhilePortsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		then := map[int]func(){}
		b, all := largeBench(t, then)
		b.begin()
		then[1] = func() {
			b.Set(&model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
		}
		b.atOnce(t, func() {
			b.Set(manyPortService("p", 0))
			b.Set(manyPortSlice("p", "10.245.0.1"))
		})
		synctest.Wait()
		if len(b.syncs) != 2 || !b.syncs[1].Full || len(b.kernel.Objects) != others+manyPorts {
			t.Errorf("%d syncs, %d objects", len(b.syncs), len(b.kernel.Objects))
		}
		inEffect(t, *all)
	})
}

// A data plane that takes over while ports wait has them, and their changes are reported.
func TestSwitchWhilePortsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		then := map[int]func(){}
		b, all := largeBench(t, then)
		b.begin()
		next := newKernel()
		var err error
		old := 0 // ports that the old data plane has completely when the other one takes over
		then[2] = func() {
			go func() {
				_, err = b.Switch(t.Context(), engine.DataPlane{Backend: dataplane.New(fronts{}, next)})
				for _, got := range b.kernel.Objects {
					if strings.Count(got, ":") == eachPort {
						old++
					}
				}
			}()
			time.Sleep(time.Millisecond) // it comes before the next sync
		}
		for n := 3; n < 100; n++ {
			then[n] = func() { time.Sleep(time.Millisecond) }
		}
		b.atOnce(t, func() {
			b.Set(manyPortService("p", 0))
			b.Set(manyPortSlice("p", "10.245.0.1"))
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if err != nil || len(next.Objects) != others+manyPorts || old >= manyPorts/2 {
			t.Errorf("%v; %d objects, the old one had %d ports", err, len(next.Objects), old)
		}
		if got := len(inEffect(t, *all)); got != 1+manyPorts {
			t.Errorf("the changes of %d ports were reported", got)
		}
	})
}
