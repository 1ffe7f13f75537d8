// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/model"
)

// watched is an engine with all that it reports and logs as a warning.
func watched(t *testing.T) (b *bench, told *[]model.Problem, log *bytes.Buffer) {
	told, log = new([]model.Problem), new(bytes.Buffer)
	b = start(t, func(o *engine.Options) {
		o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		o.Hooks.Problem = func(p model.Problem) { *told = append(*told, p) }
	})
	return b, told, log
}

// named is a Service with one port, and its EndpointSlice.
func named(port string) (*model.Service, *model.Slice) {
	svc := service("web", "10.96.0.1")
	svc.Ports[0].Name = port
	s := slice("web-1", "web", "10.0.0.1", time.Time{})
	s.Ports = []model.SlicePort{{Name: port, Proto: model.TCP, Port: 8080}}
	return svc, s
}

// external is a Service that asks for an address, or for none.
func external(name, clusterIP, ip string) *model.Service {
	s := service(name, clusterIP)
	if ip != "" {
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr(ip)}
	}
	return s
}

// states are the Events about the states of Services so far.
func (b *bench) states() (notes []string) {
	for _, s := range b.syncs {
		for _, c := range s.StateChanges {
			if e, ok := (events.Composer{Node: "here"}).ServiceState(c); ok {
				notes = append(notes, e.About.String()+": "+e.Note)
			}
		}
	}
	return notes
}

// What belongs together arrives one after another: that is shown for as long as it lasts, and is no
// warning. When it stays, it is one, once.
func TestOnlyProblemsThatLastAreReported(t *testing.T) {
	const ip = "203.0.113.1"
	oldService, oldSlice := named("old")
	newService, newSlice := named("new")
	for _, c := range []struct {
		name                  string
		before, change, after func(*bench)
		why                   model.Reason
		ends                  int // Events about the end of a problem that has lasted
	}{
		{
			"a port before its EndpointSlices",
			func(b *bench) { b.Set(oldService); b.Set(oldSlice) },
			func(b *bench) { b.Set(newService) },
			func(b *bench) { b.Set(newSlice) },
			model.WhyNoTargetPort, 1,
		},
		{
			"an address that moves",
			func(b *bench) { b.Set(external("a", "10.96.0.1", ip)); b.Set(service("b", "10.96.0.2")) },
			func(b *bench) { b.Set(external("b", "10.96.0.2", ip)) },
			func(b *bench) { b.Set(external("a", "10.96.0.1", "")) },
			model.WhyFrontendTaken, 1,
		},
		{
			"a Service that goes",
			func(b *bench) { b.Set(external("a", "10.96.0.1", ip)) },
			func(b *bench) { b.Set(external("b", "10.96.0.2", ip)) },
			func(b *bench) { b.Delete(&model.Service{Name: model.ServiceName{Namespace: "ns", Name: "b"}}) },
			model.WhyFrontendTaken, 0, // with the Service
		},
		{
			"a source",
			func(b *bench) { b.Set(service("x", "10.96.0.1")) },
			func(b *bench) {
				b.Problems("API server", []model.Problem{{Object: "Service ns/x", Why: model.WhyInvalid}})
			},
			func(b *bench) { b.Problems("API server", nil) },
			model.WhyInvalid, 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, told, log := watched(t)
				c.before(b)
				b.Synced(true)
				sleep(time.Minute)
				for range 3 { // each time anew
					c.change(b)
					sleep(engine.Hold - time.Millisecond)
					if n := b.Status().Services[model.Partial]; n == 0 {
						t.Error("not shown while it lasts")
					}
					c.after(b)
					sleep(time.Millisecond)
					c.before(b)
					sleep(time.Millisecond)
				}
				sleep(time.Minute)
				if len(*told) > 0 || log.Len() > 0 || len(b.states()) > 0 {
					t.Errorf("reported %v, Events %v, logged %s", *told, b.states(), log)
				}
				c.change(b)
				sleep(time.Hour)
				if len(*told) != 1 || (*told)[0].Why != c.why || bytes.Count(log.Bytes(), []byte("\n")) != 1 {
					t.Errorf("when it lasts: reported %v, logged %s", *told, log)
				}
				c.after(b)
				sleep(time.Minute)
				if got := b.states(); len(got) != c.ends || strings.Count(fmt.Sprint(got), "all problems are solved") != c.ends {
					t.Errorf("after it has lasted: Events %q, want %d", got, c.ends)
				}
			})
		})
	}
}

// What is measured is reported at once: it may be over before Hold, and has happened.
func TestWhatIsMeasuredIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, told, _ := watched(t)
		b.Synced(true)
		for n := range 2 {
			b.Problems("failover", []model.Problem{{Object: "endpoints of node-4", Why: model.WhyUnanswered}})
			if synctest.Wait(); len(*told) != n+1 {
				t.Errorf("reported %v, want %d", *told, n+1)
			}
			b.Problems("failover", nil)
			sleep(time.Minute)
		}
		b.Set(service("x", "10.96.0.1"))
		for n := range 2 { // whether the problem comes before the state or the state before the problem
			if n == 1 {
				b.Problems("API server", []model.Problem{{Object: "Service ns/x", Why: model.WhyInvalid}})
				sleep(time.Millisecond)
			}
			b.Problems("failover", []model.Problem{{Object: "Service ns/x", Why: model.WhyFull}})
			sleep(time.Second)
			b.Problems("failover", nil)
			b.Problems("API server", nil)
			if sleep(time.Second); len(b.states()) != n+1 {
				t.Errorf("Events %q: each problem has an end", b.states())
			}
		}
	})
}

// A problem whose details change all the time is reported like one that stays the same.
func TestAProblemThatChangesLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, told, _ := watched(t)
		b.Synced(true)
		for i := range 10 {
			if want := int(time.Duration(i) * time.Second / engine.Hold); want != 0 && len(*told) == 0 || want == 0 && len(*told) > 0 {
				t.Errorf("%d problems reported after %d s", len(*told), i)
			}
			b.Problems("API server", []model.Problem{{Object: "Service ns/x", Why: model.WhyTooLarge, Detail: fmt.Sprint(i)}, {Object: "Service ns/y", Why: model.WhyInvalid}})
			sleep(time.Second)
		}
	})
}
