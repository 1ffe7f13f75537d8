// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// fronts compiles a port to one object a front: its endpoints.
type fronts struct {
	dataplane.SimpleCompiler[string, string]
	compiled *int
}

func (fronts) Base(h *model.Host, emit func(string, string)) {
	emit("base", fmt.Sprint(h.Name, " ", h.IPs))
	for _, p := range h.ServiceCIDRs {
		emit(p.String(), "drop")
	}
}

func (f fronts) Port(_ *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	if f.compiled != nil {
		*f.compiled++
	}
	for _, f := range p.Frontends {
		v := f.On[0].Verdict.String()
		if f.On[0].Pool != nil {
			v = fmt.Sprint(f.On[0].Pool.Endpoints)
		}
		emit(f.At.String(), v)
	}
	return nil
}
func (fronts) Rank(string) int        { return 0 }
func (fronts) Equal(a, b string) bool { return a == b }

type bench struct {
	*engine.Engine
	kernel  *memory.Driver[string, string]
	syncs   []engine.Sync
	drift   int
	found   []engine.Drift
	audited atomic.Int32
}

func newKernel() *memory.Driver[string, string] {
	return memory.New[string](fronts{}.Equal, dataplane.Limits{})
}

// start runs an engine on an empty kernel in a synctest bubble until the test ends.
func start(t *testing.T, change func(*engine.Options)) *bench { return startOn(t, newKernel(), change) }

// startOn does so on a kernel that has something in it. It is read at once: what
// is put there later is unknown to the engine.
func startOn(t *testing.T, kernel *memory.Driver[string, string], change func(*engine.Options)) *bench {
	b := &bench{kernel: kernel}
	o := engine.Options{
		Host: func(n *model.Node, _ []*model.ServiceCIDR) (*model.Host, []model.Problem) {
			h := &model.Host{Name: "here"}
			if n != nil {
				h.IPs = n.IPs
			}
			return h, nil
		},
		NodeName: "here", Backend: dataplane.New(fronts{}, b.kernel), AuditEvery: time.Hour, Log: slog.New(slog.DiscardHandler),
		Hooks: engine.Hooks{Synced: func(s engine.Sync) { b.syncs = append(b.syncs, s) }, Drifted: func(n int, found []engine.Drift) { b.drift += n; b.found = append(b.found, found...) }, Audited: func() { b.audited.Add(1) }},
	}
	if change != nil {
		change(&o)
	}
	b.Engine = engine.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return b
}

func service(n, ip string) *model.Service {
	return &model.Service{
		Name: model.ServiceName{Namespace: "ns", Name: n}, ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)},
		Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
	}
}

// A data plane that cannot be opened yet is looked for every second: meanwhile the status says why,
// questions are answered, and nothing is lost. Then everything is read and programmed.
func TestADataPlaneThatOpensLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.0.9:80"] = "left by an earlier run"
		var there atomic.Bool
		var attempts atomic.Int64
		b := startOn(t, kernel, func(o *engine.Options) {
			backend := o.Backend
			o.Backend = dataplane.Unopened()
			o.Open = func(context.Context) (dataplane.Backend, error) {
				if attempts.Add(1); !there.Load() {
					return nil, fmt.Errorf("no network: %w", dataplane.ErrNotReady)
				}
				return backend, nil
			}
		})
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Hour)
		if s := b.Status(); s.Err == nil || !strings.Contains(s.Err.Error(), "no network") || s.Adopted || s.Synced || attempts.Load() < 3000 || attempts.Load() > 3700 {
			t.Errorf("after %d attempts: %+v", attempts.Load(), s)
		}
		if s, err := b.Snapshot(t.Context()); err != nil || len(s.Services) != 1 {
			t.Errorf("%v, %v", s, err)
		}
		if _, err := b.Switch(t.Context(), engine.DataPlane{Backend: dataplane.New(fronts{}, newKernel())}); !errors.Is(err, engine.ErrNotReady) {
			t.Errorf("switch: %v", err)
		}
		attempts.Store(0)
		there.Store(true)
		kernel.Do(func() { kernel.Broken = errors.New("not readable") })
		sleep(10 * time.Second)
		if attempts.Load() != 1 {
			t.Errorf("opened %d times", attempts.Load())
		}
		kernel.Do(func() { kernel.Broken = nil })
		sleep(2 * time.Second)
		if s := b.Status(); !s.Synced || s.Err != nil || attempts.Load() != 1 {
			t.Errorf("opened %d times: %+v", attempts.Load(), s)
		}
		if _, left := kernel.Objects["10.96.0.9:80"]; left || kernel.Objects["10.96.0.1:80"] != "reject" {
			t.Errorf("programmed %v", kernel.Objects)
		}
	})
}

// What the source could not understand before the data plane was open spares what an earlier run left there.
func TestDoubtIsKnownToADataPlaneThatOpensLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.0.9:80"] = "of an input that could not be decoded"
		var there atomic.Bool
		b := startOn(t, kernel, func(o *engine.Options) {
			backend := o.Backend
			o.Backend = dataplane.Unopened()
			o.Open = func(context.Context) (dataplane.Backend, error) {
				if !there.Load() {
					return nil, dataplane.ErrNotReady
				}
				return backend, nil
			}
		})
		b.Set(service("a", "10.96.0.1"))
		b.Synced(false)
		sleep(time.Minute)
		there.Store(true)
		sleep(time.Minute)
		if _, kept := kernel.Objects["10.96.0.9:80"]; !kept || kernel.Objects["10.96.0.1:80"] != "reject" {
			t.Errorf("in doubt: %v", kernel.Objects)
		}
		b.Synced(true)
		sleep(time.Minute)
		if _, left := kernel.Objects["10.96.0.9:80"]; left {
			t.Errorf("the doubt is over: %v", kernel.Objects)
		}
	})
}

func TestNothingIsProgrammedBeforeTheSourceIsSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.0.9:80"] = "kept until we know better"
		b := startOn(t, kernel, nil)
		b.Set(service("a", "10.96.0.1"))
		sleep(time.Minute)
		if b.kernel.Commits != 0 {
			t.Fatal("programmed half the truth")
		}
		b.Synced(true)
		synctest.Wait()
		if len(b.kernel.Objects) != 2 || b.kernel.Objects["10.96.0.1:80"] != "reject" {
			t.Fatalf("objects: %v", b.kernel.Objects)
		}
		if s := b.Status(); !s.Synced || !s.QueuedAt.IsZero() || s.Err != nil {
			t.Fatalf("status: %+v", s)
		}
	})
}

func TestAChangeIsAppliedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Synced(true)
		synctest.Wait()
		before := time.Now()
		b.Set(service("a", "10.96.0.1"))
		synctest.Wait() // no fake time passes here
		if b.kernel.Objects["10.96.0.1:80"] != "reject" || !time.Now().Equal(before) {
			t.Fatalf("not at once: %v after %v", b.kernel.Objects, time.Since(before))
		}
	})
}

func TestMinGapIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(o *engine.Options) { o.MinGap = 10 * time.Second })
		b.Synced(true)
		synctest.Wait()
		for i := range 5 {
			b.Set(service(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", i)))
			sleep(time.Second)
		}
		synctest.Wait()
		if len(b.kernel.Objects) != 1 {
			t.Fatalf("too early: %v", b.kernel.Objects)
		}
		if q := b.Status().QueuedAt; q.IsZero() {
			t.Fatal("waiting events must show in the status")
		}
		sleep(6 * time.Second)
		if len(b.kernel.Objects) != 6 || b.kernel.Commits != 2 {
			t.Fatalf("%d objects in %d commits, want 6 in 2", len(b.kernel.Objects), b.kernel.Commits)
		}
	})
}

func TestUnreadableKernelAtStartIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Broken = errors.New("no permission")
		b := startOn(t, kernel, nil)
		b.Synced(true)
		sleep(10 * time.Second)
		if kernel.Commits != 0 || b.Status().Err == nil || b.Status().Adopted {
			t.Fatalf("commits %d, status %+v", kernel.Commits, b.Status())
		}
		if _, err := b.Snapshot(t.Context()); err != nil {
			t.Fatalf("users must be able to ask what is wrong: %v", err)
		}
		synctest.Wait()
		kernel.Do(func() { kernel.Broken = nil })
		sleep(2 * time.Second)
		if kernel.Commits != 1 || !b.Status().Synced {
			t.Fatalf("commits %d, status %+v", kernel.Commits, b.Status())
		}
	})
}

func TestForeignWritesAreFoundAndRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		if b.kernel.Observes != 1 {
			t.Fatalf("the kernel was read %d times though it was unchanged", b.kernel.Observes)
		}
		b.kernel.Disturb(func(o map[string]string) { clear(o) })
		sleep(time.Second)
		if len(b.kernel.Objects) != 2 || b.drift != 2 || b.Status().Drift != 2 {
			t.Fatalf("objects %v, drift %d", b.kernel.Objects, b.drift)
		}
	})
}

func TestChangesDoNotWaitForAnAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		b.kernel.Do(func() { b.kernel.Slow = func() { sleep(10 * time.Second) } })
		b.kernel.Disturb(func(o map[string]string) { delete(o, "10.96.0.1:80") })
		sleep(5 * time.Second) // the audit has read, and is not done
		b.Set(service("b", "10.96.0.2"))
		synctest.Wait()
		if b.kernel.Objects["10.96.0.2:80"] != "reject" || b.drift != 0 {
			t.Fatalf("objects %v, drift %d", b.kernel.Objects, b.drift)
		}
		sleep(10 * time.Second)
		if len(b.kernel.Objects) != 3 || b.drift != 1 {
			t.Fatalf("objects %v, drift %d: want the one that was deleted", b.kernel.Objects, b.drift)
		}
	})
}

// A repaired port is reported as if it were new: connections that began meanwhile
// may have gone astray. What was not damaged is not.
func TestRepairedPortsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		sleep(time.Minute)
		told := func() (names []string) {
			for _, s := range b.syncs {
				for _, d := range s.Restored {
					if d.Old != nil || d.New == nil {
						t.Errorf("reported as %+v", d)
					}
					names = append(names, d.New.ID.Service.Name)
				}
			}
			b.syncs = nil
			slices.Sort(names)
			return names
		}
		if names := told(); names != nil {
			t.Errorf("%v reported at the start", names)
		}
		b.kernel.Disturb(func(o map[string]string) { delete(o, "10.96.0.1:80") })
		sleep(10 * time.Second)
		if names := told(); !slices.Equal(names, []string{"a"}) {
			t.Errorf("%v reported, want a", names)
		}
		b.kernel.Disturb(func(o map[string]string) { clear(o) })
		sleep(10 * time.Second)
		if names := told(); !slices.Equal(names, []string{"a", "b"}) {
			t.Errorf("%v reported after everything was gone", names)
		}
	})
}

// A data plane that does not answer is given up: changes go on, and so does
// switching to another one.
func TestAnAuditThatNeverEndsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		hang := make(chan struct{})
		defer close(hang)
		b.kernel.Do(func() { b.kernel.Slow = func() { <-hang } })
		b.kernel.Disturb(func(o map[string]string) { delete(o, "10.96.0.1:80") })
		sleep(10 * time.Minute)
		if a := b.Status().Audits; a.Failed == 0 {
			t.Errorf("audits: %+v", a)
		}
		b.Set(service("b", "10.96.0.2"))
		sleep(time.Second)
		if b.kernel.Objects["10.96.0.2:80"] != "reject" {
			t.Errorf("objects %v", b.kernel.Objects)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		next, backend := second()
		if _, err := b.Switch(ctx, engine.DataPlane{Backend: backend}); err != nil || len(next.Objects) != 3 {
			t.Errorf("switch: %v, %d objects", err, len(next.Objects))
		}
		next.Disturb(func(o map[string]string) { clear(o) })
		sleep(10 * time.Second)
		if len(next.Objects) != 3 {
			t.Errorf("the next one is not audited: %v", next.Objects)
		}
	})
}

// busy is a backend that cannot be read beside changes.
type busy struct {
	dataplane.Backend
	audits int
}

func (b *busy) Audit(ctx context.Context) (int, error) {
	if b.audits++; b.audits <= 3 {
		return 0, fmt.Errorf("read: %w", dataplane.ErrInterrupted)
	}
	return b.Backend.Audit(ctx)
}

func TestChangesWaitForAnAuditThatNeverWorksBesideThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var backend *busy
		b := start(t, func(o *engine.Options) {
			backend = &busy{Backend: o.Backend}
			o.Backend = backend
		})
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		b.kernel.Disturb(func(o map[string]string) { clear(o) })
		sleep(5 * time.Second)
		if len(b.kernel.Objects) != 2 || b.drift != 2 || backend.audits != 4 {
			t.Fatalf("objects %v, drift %d after %d audits", b.kernel.Objects, b.drift, backend.audits)
		}
	})
}

// A data plane that cannot be read is not asked all the time.
func TestAuditsThatFailAreSpacedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		b.kernel.Do(func() { b.kernel.Broken = errors.New("no memory") })
		b.kernel.Disturb(func(o map[string]string) { clear(o) })
		sleep(time.Minute)
		if n := b.Status().Audits.Failed; n < 10 || n > 20 {
			t.Errorf("%d attempts in a minute", n)
		}
		b.kernel.Do(func() { b.kernel.Broken = nil })
		sleep(5 * time.Second)
		if len(b.kernel.Objects) != 2 {
			t.Errorf("not repaired: %v", b.kernel.Objects)
		}
	})
}

// costly is a backend whose AllGaps costs all there is.
type costly struct {
	dataplane.Backend
	asked int
}

func (c *costly) AllGaps() map[model.PortID][]model.Gap { c.asked++; return c.Backend.AllGaps() }

func TestAFailureDoesNotMakeEverySyncCostAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var backend *costly
		b := start(t, func(o *engine.Options) {
			backend = &costly{Backend: o.Backend}
			o.Backend = backend
		})
		b.kernel.Do(func() { b.kernel.Fail = func(ledger.Op[string, string]) error { return errors.New("not now") } })
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		if backend.asked != 0 || len(b.syncs) < 5 {
			t.Errorf("%d syncs asked for everything %d times", len(b.syncs), backend.asked)
		}
	})
}

func TestFailuresAreRetriedWithoutAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		repair := b.refuse("10.96.0.1:80")
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		synctest.Wait()
		if len(b.kernel.Objects) != 2 || b.Status().Err == nil || !b.Status().QueuedAt.IsZero() {
			t.Fatalf("objects %v, status %+v", b.kernel.Objects, b.Status())
		}
		repair()
		sleep(time.Second)
		if len(b.kernel.Objects) != 3 || b.Status().Err != nil {
			t.Fatalf("objects %v, status %+v", b.kernel.Objects, b.Status())
		}
	})
}

func TestOnlyOurOwnNodeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Synced(true)
		b.Set(&model.Node{Name: "there", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}})
		b.Set(&model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
		synctest.Wait()
		if b.kernel.Objects["base"] != "here [192.0.2.1]" {
			t.Fatalf("base: %q", b.kernel.Objects["base"])
		}
		b.Delete(&model.Node{Name: "there"})
		b.Delete(&model.Node{Name: "here"}) // the last known one is kept
		synctest.Wait()
		if b.kernel.Objects["base"] != "here [192.0.2.1]" {
			t.Fatalf("base without a Node: %q", b.kernel.Objects["base"])
		}
	})
}

// Ranges of cluster IPs come and go at once, and concern no port.
func TestServiceCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		compiled := 0
		kernel := newKernel()
		b := startOn(t, kernel, func(o *engine.Options) {
			o.Backend = dataplane.New(fronts{compiled: &compiled}, kernel)
			o.Host = func(_ *model.Node, cidrs []*model.ServiceCIDR) (*model.Host, []model.Problem) {
				h := &model.Host{Name: "here"}
				for _, c := range cidrs {
					h.ServiceCIDRs = append(h.ServiceCIDRs, c.CIDRs...)
				}
				return h, nil
			}
		})
		cidr := func(name, p string) *model.ServiceCIDR {
			return &model.ServiceCIDR{Name: name, CIDRs: []netip.Prefix{netip.MustParsePrefix(p)}}
		}
		b.Set(service("a", "10.96.0.1"))
		b.Set(cidr("first", "10.96.0.0/16"))
		b.Synced(true)
		synctest.Wait()
		before, commits := compiled, kernel.Commits
		for _, step := range []struct {
			do   func()
			want []string
		}{
			{func() {}, []string{"10.96.0.0/16"}},
			{func() { b.Set(cidr("more", "10.8.0.0/16")) }, []string{"10.8.0.0/16", "10.96.0.0/16"}},
			{func() { b.Set(cidr("more", "10.9.0.0/16")) }, []string{"10.9.0.0/16", "10.96.0.0/16"}},
			{func() { b.Set(cidr("more", "10.9.0.0/16")) }, []string{"10.9.0.0/16", "10.96.0.0/16"}},
			{func() { b.Delete(&model.ServiceCIDR{Name: "more"}) }, []string{"10.96.0.0/16"}},
			{func() { b.Delete(&model.ServiceCIDR{Name: "first"}); b.Delete(&model.ServiceCIDR{Name: "never"}) }, nil},
		} {
			step.do()
			synctest.Wait()
			var got []string
			for k, v := range kernel.Objects {
				if v == "drop" {
					got = append(got, k)
				}
			}
			if slices.Sort(got); !slices.Equal(got, step.want) {
				t.Errorf("ranges %v, want %v", got, step.want)
			}
		}
		if compiled != before || kernel.Commits != commits+4 || len(kernel.Objects) != 2 {
			t.Errorf("%d ports compiled, %d commits, objects %v", compiled-before, kernel.Commits-commits, kernel.Objects)
		}
	})
}

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Set(service("b", "10.96.0.2"))
		b.Set(service("a", "10.96.0.1"))
		b.Problems("folder", []model.Problem{{Object: "Service ns/c", Where: "c.yaml:3", Why: model.WhyBadAddress, Detail: "x"}})
		b.Synced(true)
		s, err := b.Snapshot(t.Context())
		if err != nil || len(s.Services) != 2 || s.Services[0].Object.Name.Name != "a" || len(s.Problems) != 1 {
			t.Fatalf("%+v, %v", s, err)
		}
		synctest.Wait()
		syncs := len(b.syncs)
		_, err = b.Snapshot(t.Context())
		synctest.Wait()
		if err != nil || len(b.syncs) != syncs {
			t.Fatal("looking made it work")
		}
	})
}

// sleep lets fake time pass, and everything that happens in it.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A failed change is reported as applied only when it is in effect.
func TestAppliedFollowsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		repair := b.refuse("10.96.0.1:80")
		b.Set(service("a", "10.96.0.1"))
		b.Set(service("b", "10.96.0.2"))
		b.Synced(true)
		synctest.Wait()
		settled := func() (names string) {
			for _, s := range b.syncs {
				for _, d := range s.Applied {
					names += d.ID().Service.Name
				}
			}
			return names
		}
		if got := settled(); got != "b" {
			t.Fatalf("applied: %q, want b alone", got)
		}
		repair()
		sleep(time.Second)
		if got := settled(); got != "ba" {
			t.Fatalf("applied: %q, want b, then a", got)
		}
	})
}

func TestEventsDoNotHurryAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		b := start(t, func(o *engine.Options) {
			o.Backend = unreadable{o.Backend, &tries}
		})
		for i := range 100 {
			b.Set(service(fmt.Sprint("s", i), "10.96.0.1"))
			sleep(10 * time.Millisecond)
		}
		if tries > 2 {
			t.Errorf("%d attempts in a second", tries)
		}
	})
}

// A read at the start may take minutes: the engine answers meanwhile, and programs
// nothing.
func TestALongReadAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(o *engine.Options) { o.Backend = slowReader{o.Backend} })
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(5 * time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := b.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s.Status.Adopted || s.Status.Synced || s.Status.ReadingAt.IsZero() || len(s.Services) != 1 {
			t.Errorf("while reading: %+v", s.Status)
		}
		sleep(6 * time.Minute)
		if s := b.Status(); !s.Adopted || !s.Synced || !s.ReadingAt.IsZero() {
			t.Errorf("afterwards: %+v", s)
		}
	})
}

type slowReader struct{ dataplane.Backend }

func (s slowReader) Adopt(ctx context.Context) error {
	sleep(10 * time.Minute)
	return s.Backend.Adopt(ctx)
}

type unreadable struct {
	dataplane.Backend
	tries *int
}

func (u unreadable) Adopt(context.Context) error {
	*u.tries++
	return errors.New("no permission")
}

// What an earlier run programmed stays while the source is not whole.
func TestDoubtSparesWhatWasThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(o *engine.Options) {
			k := memory.New[string](fronts{}.Equal, dataplane.Limits{})
			k.Objects["10.96.0.9:80"] = "of a Service whose manifest is broken now"
			o.Backend = dataplane.New(fronts{}, k)
		})
		b.Set(service("a", "10.96.0.1"))
		b.Synced(false)
		sleep(time.Minute)
		s, err := b.Snapshot(t.Context())
		if err != nil || s.Backend.Objects != 3 {
			t.Fatalf("%d objects, want the base, the new one and the spared one (%v)", s.Backend.Objects, err)
		}
		b.Synced(true)
		sleep(time.Second)
		if s, _ = b.Snapshot(t.Context()); s.Backend.Objects != 2 {
			t.Fatalf("%d objects after the doubt is over", s.Backend.Objects)
		}
	})
}

// A source's problems are reported once each, and not before the source is done and they have lasted.
func TestSourceProblemsAreReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		b := start(t, func(o *engine.Options) {
			o.Hooks.Problem = func(p model.Problem) { told = append(told, p.Detail) }
		})
		x, y := model.Problem{Detail: "x"}, model.Problem{Detail: "y"}
		b.Problems("folder", []model.Problem{{Detail: "over in a moment"}})
		b.Problems("folder", []model.Problem{x})
		b.Synced(true)
		b.Problems("folder", []model.Problem{x, y, {Detail: "over in a second"}})
		sleep(time.Second)
		if len(told) > 0 {
			t.Errorf("reported %v at once", told)
		}
		b.Problems("folder", []model.Problem{x, y})
		sleep(engine.Hold)
		if fmt.Sprint(told) != "[x y]" {
			t.Errorf("reported %v", told)
		}
	})
}

// SetTiming changes the pace, and what the configuration makes of the last Node.
func TestSetTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name, commits := "before", 0
		b := start(t, func(o *engine.Options) {
			o.Host = func(n *model.Node, _ []*model.ServiceCIDR) (*model.Host, []model.Problem) {
				h := &model.Host{Name: name}
				if n != nil {
					h.IPs = n.IPs
				}
				return h, nil
			}
		})
		b.Set(&model.Node{Name: "here", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
		b.Synced(true)
		synctest.Wait()
		name = "after"
		b.SetTiming(time.Minute, 10*time.Second)
		sleep(10 * time.Second)
		b.kernel.Do(func() {
			if got := b.kernel.Objects["base"]; got != "after [192.0.2.1]" {
				t.Errorf("base: %q", got)
			}
			commits = b.kernel.Commits
		})
		b.Set(service("a", "10.96.0.1"))
		b.SetTiming(time.Minute, 10*time.Second)
		synctest.Wait()
		b.kernel.Do(func() {
			if b.kernel.Commits != commits {
				t.Error("the least time between syncs is not kept")
			}
		})
		sleep(10 * time.Second)
		b.kernel.Do(func() {
			if b.kernel.Commits != commits+1 {
				t.Errorf("%d commits, want %d", b.kernel.Commits, commits+1)
			}
		})
	})
}

// An unneeded object that cannot be deleted delays no other.
func TestLeftoversDelayNoService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := newKernel()
		kernel.Objects["10.96.0.9:80"] = "left by an earlier run"
		kernel.Fail = func(op ledger.Op[string, string]) error {
			if op.Verb == ledger.Delete {
				return errors.New("in use")
			}
			return nil
		}
		b := startOn(t, kernel, nil)
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		synctest.Wait()
		var settled int
		for _, s := range b.syncs {
			settled += len(s.Applied)
		}
		if settled != 1 {
			t.Errorf("%d changes are in effect, want the one", settled)
		}
		s, err := b.Snapshot(t.Context())
		if err != nil || s.Backend.Left == nil || len(s.Backend.Failures) > 0 {
			t.Errorf("left %v, failures %v (%v)", s.Backend.Left, s.Backend.Failures, err)
		}
	})
}

// traced is a backend that something else reads for a while.
type traced struct {
	dataplane.Backend
	until time.Time
}

func (b *traced) Audit(ctx context.Context) (int, error) {
	if time.Now().Before(b.until) {
		return 0, dataplane.ErrReading
	}
	return b.Backend.Audit(ctx)
}

// An audit that is due during a trace has not failed: it follows soon after.
func TestAuditsWaitForATrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(o *engine.Options) { o.Backend = &traced{o.Backend, time.Now().Add(80 * time.Second)} })
		b.Set(service("a", "10.96.0.1"))
		b.Synced(true)
		sleep(time.Minute)
		b.kernel.Disturb(func(o map[string]string) { clear(o) })
		sleep(22 * time.Second)
		if a := b.Status().Audits; a.Failed != 0 || a.Done != 1 || len(b.kernel.Objects) != 2 {
			t.Errorf("audits %+v, objects %v", a, b.kernel.Objects)
		}
	})
}
