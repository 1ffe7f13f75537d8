// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/core/track"
)

var silentEndpoint = netip.MustParseAddrPort("10.0.2.1:8080")

// silentWorld is an engine, and the flows of its node, in which one endpoint does not
// answer any more: it has answered this node before.
type silentWorld struct {
	network
	blind    bool
	failing  error // of looking
	unasked  int   // how many questions about addresses fail, from the second on
	asked    int
	suspects model.Suspects
	set      int // how often the suspects were
	problems []model.Problem
	answers  bool // it answers our SYNs, though no client gets an answer
	broken   bool // SYNs cannot be sent
	unseen   bool // no answer to anybody has passed this node
	last     uint32
	quiet    bool // no flow begins
	burst    bool // more begin than can be seen
	waiting  []suspect.Flow
	searches int   // of the whole table
	unread   error // searches fail with it
}

func (w *silentWorld) Status() engine.Status { return engine.Status{Synced: true} }

func (w *silentWorld) Current() engine.DataPlane {
	return engine.DataPlane{Mode: dataplane.Mode{Conntrack: !w.blind}}
}
func (w *silentWorld) Problems(_ string, all []model.Problem) { w.problems = all }
func (w *silentWorld) SetSuspects(s model.Suspects)           { w.suspects, w.set = s, w.set+1 }

// remote are the endpoints that there are.
func (w *silentWorld) remote() (all []track.Endpoint) {
	of := model.ServiceName{Namespace: "shop", Name: "web"}
	all = []track.Endpoint{{At: silentEndpoint, Node: "b", Service: of}}
	for n := byte(3); w.unseen && n < 6; n++ {
		all = append(all, track.Endpoint{At: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, n, 1}), 8080), Node: string('a' + rune(n)), Service: of})
	}
	return all
}

func (w *silentWorld) RemoteOf(context.Context, netip.AddrPort, model.ServiceName) ([]track.Endpoint, error) {
	return w.remote(), nil
}

func (w *silentWorld) RemoteAt(_ context.Context, a netip.Addr) (at []track.Endpoint, err error) {
	if w.asked++; w.asked > 1 && w.asked <= 1+w.unasked {
		return nil, context.DeadlineExceeded
	}
	return slices.DeleteFunc(w.remote(), func(e track.Endpoint) bool { return e.At.Addr() != a }), nil
}
func (w *silentWorld) Spent() time.Duration { return 0 }
func (w *silentWorld) SetUnmarked(bool)     {}
func (w *silentWorld) Stop()                {}
func (w *silentWorld) Close() error         { return nil }

// timeout is the error of a SYN without an answer.
type timeout struct{}

func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }
func (timeout) Error() string   { return "i/o timeout" }

// Do implements network: it is asked to connect to an endpoint.
func (w *silentWorld) Do(func() error) error {
	switch {
	case w.broken:
		return syscall.EADDRNOTAVAIL
	case w.answers:
		return nil
	}
	time.Sleep(probeTimeout)
	return timeout{}
}

func (w *silentWorld) New(_ context.Context, each func(suspect.Flow, suspect.State, time.Time)) (bool, error) {
	if w.quiet || w.burst {
		return !w.burst, w.failing
	}
	for _, e := range w.remote() {
		for client := byte(1); client <= 2; client++ {
			w.last++
			each(suspect.Flow{
				ID: w.last, Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, client}), uint16(w.last)),
				Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Endpoint: e.At,
			}, suspect.Unknown, time.Now())
		}
	}
	return true, w.failing
}

func (w *silentWorld) Wait(ctx context.Context) {}

func (w *silentWorld) States(_ context.Context, flows []suspect.Flow, each func(int, suspect.State)) error {
	for i := range flows {
		each(i, suspect.Waiting)
	}
	return w.failing
}

func (w *silentWorld) Prior(ctx context.Context, _ func(netip.Addr) bool, most int) ([]netip.AddrPort, []suspect.Flow, error) {
	waiting, err := w.Waiting(ctx, most)
	return []netip.AddrPort{silentEndpoint}, waiting, err
}

func (w *silentWorld) Waiting(context.Context, int) ([]suspect.Flow, error) {
	w.searches++
	return w.waiting, cmp.Or(w.failing, w.unread)
}

func (w *silentWorld) failover() *failover {
	log := slog.New(slog.DiscardHandler)
	f := newFailover(config.FailoverAuto, w, w, func(netip.Addr) bool { return false }, newReporter("a", metrics.Sources{}, log), log)
	f.flows = w
	return f
}

// cycles lets time pass, of a fake clock.
func (f *failover) cycles(ctx context.Context, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(f.cycle(ctx))
	}
}

// After a burst of connections, of which not all were seen, one search of the table serves all questions about flows
// that wait; during it there is none, as the caller has to look for itself anyway.
func TestOneSearchAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &silentWorld{quiet: true}
		f := w.failover()
		f.cycle(t.Context())
		ask := func(what string, complete bool, flows, searches int) {
			t.Helper()
			got := f.answer(t.Context(), []netip.Addr{silentEndpoint.Addr()})
			if got.complete != complete || len(got.flows) != flows || w.searches != searches {
				t.Errorf("%s: complete %t, %d flows, %d searches; want %t, %d, %d", what, got.complete, len(got.flows), w.searches, complete, flows, searches)
			}
		}
		ask("at first", true, 0, 1) // the search of the start
		w.burst = true
		f.cycle(t.Context())
		ask("in a burst", false, 0, 1)
		w.burst = false
		w.waiting = []suspect.Flow{{ID: 1, Endpoint: silentEndpoint}, {ID: 2, Endpoint: netip.MustParseAddrPort("10.9.9.9:80")}}
		f.cycle(t.Context())
		ask("after it", true, 1, 2)
		ask("again", true, 1, 2)
		w.burst = true
		f.cycle(t.Context())
		w.burst = false
		ask("after another one, soon", false, 1, 2)
		w.waiting = make([]suspect.Flow, maxPrior+1)
		time.Sleep(searchPause)
		ask("with more flows than are taken", false, 1, 3)
		w.waiting, w.unread = nil, errors.New("no buffer space")
		time.Sleep(searchPause)
		ask("when it fails", false, 1, 4)
		if !f.failingSince.IsZero() {
			t.Error("a search that fails counts as a look that fails")
		}
		w.unread = nil
		time.Sleep(searchPause)
		ask("with none", true, 0, 5)
	})
}

// A decision is carried out though the engine was too slow to answer while it was due.
func TestFailoverWithSlowEngine(t *testing.T) {
	for _, unasked := range []int{0, 1, 3} {
		synctest.Test(t, func(t *testing.T) {
			w := &silentWorld{unasked: unasked}
			f := w.failover()
			f.cycles(t.Context(), 3*time.Second)
			if len(w.suspects) != 1 {
				t.Errorf("%d questions failed: suspects %v", unasked, w.suspects)
			}
		})
	}
}

// A SYN that cannot be sent is no silence of the endpoint.
func TestFailoverWithoutPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &silentWorld{broken: true}
		f := w.failover()
		f.cycles(t.Context(), 30*time.Second)
		if w.set > 0 || len(w.problems) > 0 {
			t.Errorf("suspects %v, problems %v", w.suspects, w.problems)
		}
		f.group.Wait()
	})
}

// A look that fails says nothing of the endpoints: those that are silent stay ejected.
func TestFailoverKeepsDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &silentWorld{}
		f := w.failover()
		f.cycles(t.Context(), 3*time.Second)
		for range 3 {
			w.failing = errors.New("no buffer space")
			f.cycles(t.Context(), 30*time.Second)
			if len(w.suspects) != 1 {
				t.Fatalf("while looks fail: suspects %v", w.suspects)
			}
			w.failing = nil
			f.cycles(t.Context(), 3*time.Second)
			if len(w.suspects) != 1 {
				t.Fatalf("after that: suspects %v", w.suspects)
			}
		}
		if w.set != 1 {
			t.Errorf("suspects were set %d times", w.set)
		}
	})
}

// No endpoint stays ejected while no observer could see that it answers again.
func TestFailoverForgets(t *testing.T) {
	for what, stop := range map[string]func(*silentWorld){
		"looking fails":     func(w *silentWorld) { w.failing = errors.New("no buffer space") },
		"the mode is blind": func(w *silentWorld) { w.blind = true },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &silentWorld{}
			f := w.failover()
			f.cycles(t.Context(), 3*time.Second)
			if len(w.suspects) != 1 {
				t.Fatalf("suspects %v", w.suspects)
			}
			stop(w)
			f.cycles(t.Context(), decisionLife+failurePause)
			if len(w.suspects) > 0 || f.stats().Ejected > 0 {
				t.Errorf("%s: suspects %v", what, w.suspects)
			}
			w.failing, w.blind = nil, false
			f.cycles(t.Context(), 20*time.Second)
			if len(w.suspects) != 1 {
				t.Errorf("%s no more: suspects %v", what, w.suspects)
			}
		})
	}
}

// An ejection is one Problem with the evidence, which the engine logs, one Event and one in
// the metrics, and it ends with the suspicion. With observe all this is the same, but that
// nothing is ejected.
func TestFailoverReports(t *testing.T) {
	for mode, want := range map[config.Failover][2]string{
		config.FailoverOn:      {"1 addresses: connections of at least 2 clients unanswered", "New connections go to other endpoints"},
		config.FailoverObserve: {"1 addresses would be ejected (observe): connections of at least 2 clients unanswered", "Nothing is changed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &silentWorld{}
			var written []events.Record
			f := w.failover()
			f.mode = mode
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			note := func(_ context.Context, r events.Record) error {
				written = append(written, r)
				return nil
			}
			go func() { _ = f.report.recorder.Run(ctx, note) }()
			f.cycles(ctx, 5*time.Second)
			synctest.Wait()
			if passed := mode == config.FailoverOn; passed != (len(w.suspects) == 1) || !passed && w.set > 0 {
				t.Errorf("%s: suspects %v, set %d times", mode, w.suspects, w.set)
			}
			if len(w.problems) != 1 || w.problems[0].Object != "endpoints of b" || w.problems[0].Why != model.WhyUnanswered || !strings.HasPrefix(w.problems[0].Detail, want[0]) {
				t.Errorf("%s: problems %v", mode, w.problems)
			}
			if stats := f.stats(); stats.Ejections != 1 || stats.Ejected != 1 {
				t.Errorf("%s: metrics %+v", mode, stats)
			}
			if len(written) != 1 || written[0].Reason != "Unanswered" || !strings.Contains(written[0].Note, want[0]) || !strings.Contains(written[0].Note, want[1]) {
				t.Errorf("%s: events %+v", mode, written)
			}
			w.answers = true
			f.cycles(ctx, 11*time.Second)
			if silent := slices.ContainsFunc(slices.Collect(maps.Values(w.suspects)), time.Time.IsZero); silent || len(w.problems) > 0 || f.stats().Ejected != 0 {
				t.Errorf("%s: it answers again: suspects %v, problems %v", mode, w.suspects, w.problems)
			}
		})
	}
}

// Where answers to clients do not pass this node no endpoint is ejected, and that is reported.
func TestFailoverWithAsymmetricRouting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &silentWorld{unseen: true, answers: true}
		f := w.failover()
		f.cycles(t.Context(), 30*time.Second)
		if w.set > 0 || len(w.problems) != 1 || w.problems[0].Why != model.WhyUnsupported || !strings.Contains(w.problems[0].Detail, "asymmetric routing") {
			t.Errorf("suspects set %d times, problems %v", w.set, w.problems)
		}
	})
}
