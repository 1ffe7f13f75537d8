// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/core/track"
)

var silentEndpoint = netip.MustParseAddrPort("10.0.2.1:8080")

// silentWorld is an engine, and the flows of its node, in which one endpoint does not
// answer any more.
type silentWorld struct {
	network
	blind    bool
	failing  error // of looking
	unasked  int   // how many questions about the node fail, from the second on
	asked    int
	suspects model.Suspects
}

func (w *silentWorld) Status() engine.Status { return engine.Status{Synced: true} }

func (w *silentWorld) Current() engine.DataPlane {
	return engine.DataPlane{Mode: dataplane.Mode{Conntrack: !w.blind}}
}
func (w *silentWorld) Problems(string, []model.Problem) {}
func (w *silentWorld) SetSuspects(s model.Suspects)     { w.suspects = s }

func (w *silentWorld) RemoteOf(context.Context, netip.AddrPort, model.ServiceName) ([]track.Endpoint, error) {
	return []track.Endpoint{{At: silentEndpoint, Node: "b"}}, nil
}

func (w *silentWorld) RemoteOn(context.Context, string) ([]track.Endpoint, error) {
	if w.asked++; w.asked > 1 && w.asked <= 1+w.unasked {
		return nil, context.DeadlineExceeded
	}
	return []track.Endpoint{{At: silentEndpoint, Node: "b"}}, nil
}
func (w *silentWorld) CountRemote(context.Context) (int, error) { return 1, nil }
func (w *silentWorld) Do(func() error) error                    { return errors.New("no answer") }
func (w *silentWorld) AnySeen(context.Context) (bool, error)    { return true, nil }
func (w *silentWorld) Spent() time.Duration                     { return 0 }
func (w *silentWorld) SetUnmarked(bool)                         {}
func (w *silentWorld) Close() error                             { return nil }

func (w *silentWorld) flow(client byte) suspect.Flow {
	return suspect.Flow{
		ID: uint64(client), Client: netip.AddrFrom4([4]byte{10, 0, 1, client}),
		Frontend: netip.MustParseAddrPort("10.96.0.1:80"), Endpoint: silentEndpoint,
	}
}

func (w *silentWorld) Unanswered(_ context.Context, each func(suspect.Flow)) error {
	each(w.flow(1))
	each(w.flow(2))
	return w.failing
}

func (w *silentWorld) Answered(_ context.Context, _ netip.Addr, each func(suspect.Flow)) error {
	answered := w.flow(1)
	answered.ID = 100
	each(answered)
	return nil
}

func (w *silentWorld) failover() *failover {
	log := slog.New(slog.DiscardHandler)
	f := newFailover(config.FailoverAuto, w, w, newReporter("a", metrics.Sources{}, log), log)
	f.flows = w
	return f
}

// cycles lets time pass, of a fake clock.
func (f *failover) cycles(ctx context.Context, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(f.cycle(ctx))
	}
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

// A count of endpoints that failed is repeated at once, and none is taken for it.
func TestFailoverKeepsCount(t *testing.T) {
	w := &silentWorld{}
	f := w.failover()
	f.remote = 7
	n := &neighbours{ctx: t.Context(), failover: f, eyes: w, err: context.DeadlineExceeded}
	if got := n.Remote(); got != 7 || !f.remoteAt.IsZero() {
		t.Errorf("%d remote endpoints at %v after a failure", got, f.remoteAt)
	}
}

// Nobody stays passed over while nobody could see that an endpoint answers again.
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
			f.cycles(t.Context(), time.Second)
			if len(w.suspects) > 0 || f.stats().Suspects > 0 {
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
