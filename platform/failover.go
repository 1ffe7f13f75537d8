// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/core/track"
)

// proxied is the part of engine.Engine that failover uses.
type proxied interface {
	Status() engine.Status
	Current() engine.DataPlane
	Problems(source string, all []model.Problem)
	SetSuspects(model.Suspects)
	RemoteOf(ctx context.Context, frontend netip.AddrPort, of model.ServiceName) ([]track.Endpoint, error)
	RemoteOn(ctx context.Context, node string) ([]track.Endpoint, error)
	CountRemote(context.Context) (int, error)
}

// failover has connections pass over endpoints that have stopped answering. One
// goroutine reads flows and lets a suspect.Judge decide.
type failover struct {
	mode    config.Failover
	engine  proxied
	network network
	flows   tracked // in modes that the kernel's table shows
	log     *slog.Logger
	report  *reporter
	judge   *suspect.Judge
	pace    suspect.Pace

	ejections, suspects atomic.Int64
	spent               atomic.Int64 // nanoseconds

	mu      sync.Mutex
	trusted []netip.Addr
	probed  []probed
	probing int
	group   sync.WaitGroup // of SYNs under way

	given        model.Suspects  // what the engine was last given
	problems     []model.Problem // of the endpoints passed over now
	failingSince time.Time       // of looks; zero when the last one did not
	unanswered   bool            // the engine did not answer during the last look
	blind        bool            // logged that the mode cannot detect endpoints that do not answer

	remote   int // endpoints of other nodes, when last counted
	remoteAt time.Time
}

// newFailover returns nil where failover is off.
func newFailover(mode config.Failover, e proxied, n network, r *reporter, log *slog.Logger) *failover {
	if mode == config.FailoverOff {
		return nil
	}
	return &failover{mode: mode, engine: e, network: n, report: r, log: log, judge: suspect.New()}
}

// close closes what is open; f may be nil. It comes after run.
func (f *failover) close() error {
	if f == nil || f.flows == nil {
		return nil
	}
	return f.flows.Close()
}

// probed is the result of a SYN.
type probed struct {
	at       netip.AddrPort
	answered bool
}

// Bounds of our own SYNs: each is sent once, as the second would follow after a second.
const (
	maxProbes    = 64
	probeTimeout = 900 * time.Millisecond
)

// failurePause follows a look that failed.
const failurePause = 10 * time.Second

// decisionLife is how long endpoints stay passed over while looks fail: six looks. One
// that fails says nothing of the endpoints.
const decisionLife = time.Minute

const failoverSource = "endpoint failover"

// trust takes what a source has changed, on the engine's goroutine.
func (f *failover) trust(all []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trusted = append(f.trusted, all...)
}

// run reads flows until ctx ends.
func (f *failover) run(ctx context.Context) error {
	defer f.group.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(f.cycle(ctx))
	}
}

// cycle looks once, and returns the time until the next look.
func (f *failover) cycle(ctx context.Context) time.Duration {
	if !f.engine.Status().Synced {
		return time.Second
	}
	obs := f.observer()
	if f.logBlind(obs == nil); obs == nil {
		return failurePause
	}
	before := obs.Spent()
	decision, err := f.look(ctx, obs)
	cost := obs.Spent() - before
	f.spent.Add(int64(cost))
	if err != nil {
		f.failed(ctx, err)
		return failurePause
	}
	f.failingSince = time.Time{}
	f.apply(decision)
	return f.pace.Next(time.Now(), cost, decision.Pause)
}

// failed keeps the last decision after a look that failed, but no longer than
// decisionLife.
func (f *failover) failed(ctx context.Context, err error) {
	f.judge.Abandon()
	switch {
	case ctx.Err() != nil:
	case f.failingSince.IsZero():
		f.log.Warn("reading connections failed; endpoints passed over stay so, and no others are", "err", err, "retry", failurePause, "keep", decisionLife)
		f.failingSince = time.Now()
	case time.Since(f.failingSince) >= decisionLife && len(f.given)+len(f.problems) > 0:
		f.log.Warn("reading connections still fails; endpoints that stop answering are not passed over", "err", err)
		f.forget()
	}
}

// forget ends all suspicions: nothing could refute them any more.
func (f *failover) forget() {
	f.judge = suspect.New()
	f.apply(suspect.Decision{})
}

// observer is that of the mode in use; nil where it has none.
func (f *failover) observer() observer {
	plane := f.engine.Current()
	if o, ok := plane.Backend.(relay.Observed); ok {
		return o.Attempts()
	}
	if plane.Mode.Conntrack && f.flows != nil {
		f.flows.SetUnmarked(plane.Mode.Unmarked)
		return f.flows
	}
	return nil
}

// logBlind logs once if the mode in use cannot detect endpoints that do not answer.
func (f *failover) logBlind(blind bool) {
	if blind == f.blind {
		return
	}
	f.blind = blind
	if !blind {
		f.engine.Problems(failoverSource, nil)
		return
	}
	f.forget()
	if f.mode == config.FailoverAuto || !f.engine.Current().Mode.Conntrack {
		return // not configured; or a Gap of the mode
	}
	f.engine.Problems(failoverSource, []model.Problem{{
		Object: failoverSource, Why: model.WhyUnsupported, Detail: "conntrack cannot be read, so which endpoints do not answer is not known",
	}})
}

// look is one cycle of the Judge. Where the engine does not answer, its last decision is kept
// anyway: the Judge decides nothing that it could not look up.
func (f *failover) look(ctx context.Context, obs observer) (d suspect.Decision, err error) {
	f.deliver()
	now := time.Now()
	if err := obs.Unanswered(ctx, func(flow suspect.Flow) { f.judge.Unanswered(flow, now) }); err != nil {
		return d, err
	}
	w := &engineWorld{ctx: ctx, failover: f, obs: obs}
	orders := f.judge.Review(now, w, f.room())
	slices.SortFunc(orders.Ask, netip.Addr.Compare)
	for _, a := range slices.Compact(orders.Ask) {
		if err := obs.Answered(ctx, a, f.judge.Answered); err != nil {
			return d, err
		}
	}
	for _, at := range orders.Probe {
		f.probe(ctx, at)
	}
	f.deliver()
	d = f.judge.Decide(time.Now(), w)
	if w.err != nil && !f.unanswered && ctx.Err() == nil {
		f.log.Warn("looking up endpoints failed; those that stop answering are passed over later", "err", w.err)
	}
	f.unanswered = w.err != nil
	return d, nil
}

// deliver passes the Judge the notices since the last call.
func (f *failover) deliver() {
	f.mu.Lock()
	trusted, results := f.trusted, f.probed
	f.trusted, f.probed = nil, nil
	f.mu.Unlock()
	if len(trusted) > 0 {
		f.judge.Trust(trusted)
	}
	for _, r := range results {
		f.judge.Probed(r.at, r.answered)
	}
}

// room is how many SYNs may be sent now.
func (f *failover) room() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maxProbes - f.probing
}

// probe sends a SYN.
func (f *failover) probe(ctx context.Context, at netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probing++
	f.group.Go(func() {
		answered := f.answers(ctx, at)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.probing--
		f.probed = append(f.probed, probed{at, answered})
	})
}

// answers connects to an endpoint and closes the connection. A refusal is an answer, too.
func (f *failover) answers(ctx context.Context, at netip.AddrPort) bool {
	err := f.network.Do(func() error {
		d := net.Dialer{Timeout: probeTimeout}
		c, err := d.DialContext(ctx, "tcp", at.String())
		if err != nil {
			return err
		}
		return c.Close()
	})
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

// apply passes a decision to the engine, and reports what has changed.
func (f *failover) apply(d suspect.Decision) {
	if f.mode != config.FailoverObserve && !maps.Equal(d.Suspects, f.given) {
		f.given = d.Suspects
		f.engine.SetSuspects(d.Suspects)
	}
	silent := 0
	for _, back := range d.Suspects {
		if back.IsZero() {
			silent++
		}
	}
	f.suspects.Store(int64(silent))
	problems := f.currentProblems(d)
	for _, v := range d.Verdicts {
		if !v.Silent {
			f.log.Info("endpoints trusted again", "of", v.Name, "addresses", v.Addrs, "why", v.Detail, "after", v.Elapsed.Round(time.Millisecond))
			continue
		}
		f.ejections.Add(1)
		p := model.Problem{Object: objectPrefix + v.Name, Why: model.WhyUnanswered, Detail: f.detail(v)}
		problems = append(problems, p)
		f.report.silent(p, f.mode == config.FailoverObserve)
	}
	if !slices.Equal(problems, f.problems) {
		f.problems = problems
		f.engine.Problems(failoverSource, slices.Clone(problems))
	}
}

// currentProblems returns the problems of endpoints still passed over, and those of the whole node.
func (f *failover) currentProblems(d suspect.Decision) []model.Problem {
	all := slices.DeleteFunc(slices.Clone(f.problems), func(p model.Problem) bool {
		name, is := strings.CutPrefix(p.Object, objectPrefix)
		return !is || !slices.Contains(d.Silent, name) // back, or trusted again
	})
	if d.OneWay {
		all = append(all, model.Problem{Object: failoverSource, Why: model.WhyUnsupported, Detail: "asymmetric routing: endpoints answer this node, but their answers to clients do not pass it; off for 10 minutes"})
	}
	if d.LocalFault {
		all = append(all, model.Problem{Object: failoverSource, Why: model.WhyUnanswered, Detail: "more than a third of all remote endpoints do not answer: the fault is more likely this node's network, so none is passed over"})
	}
	return all
}

const objectPrefix = "endpoints of "

func (f *failover) detail(v suspect.Verdict) string {
	if f.mode == config.FailoverObserve {
		return fmt.Sprintf("%d addresses would be passed over (observe): %s", v.Addrs, v.Detail)
	}
	return fmt.Sprintf("%d addresses: %s", v.Addrs, v.Detail)
}

// stats are for the metrics.
func (f *failover) stats() metrics.Failover {
	return metrics.Failover{Ejections: f.ejections.Load(), Suspects: f.suspects.Load(), Spent: time.Duration(f.spent.Load())}
}

// engineWorld is suspect.World by the engine's endpoints, during one reading of flows. After an error
// nothing more is asked.
type engineWorld struct {
	*failover
	ctx context.Context
	obs observer
	of  map[asked][]suspect.Endpoint
	err error
}

// askTimeout is how long a look waits for the engine, which may be busy with a sync.
const askTimeout = 5 * time.Second

// asked is what endpoints are asked by: either.
type asked struct {
	frontend netip.AddrPort
	port     model.PortID
}

// Of implements suspect.World.
func (n *engineWorld) Of(f suspect.Flow) ([]suspect.Endpoint, bool) {
	key := asked{f.Frontend, f.Port}
	if all, ok := n.of[key]; ok {
		return all, true
	}
	all, ok := askEngine(n, func(ctx context.Context) ([]track.Endpoint, error) {
		return n.engine.RemoteOf(ctx, f.Frontend, f.Port.Service)
	})
	if !ok {
		return nil, false
	}
	if n.of == nil {
		n.of = map[asked][]suspect.Endpoint{}
	}
	n.of[key] = endpoints(all)
	return n.of[key], true
}

// On implements suspect.World.
func (n *engineWorld) On(node string) ([]suspect.Endpoint, bool) {
	all, ok := askEngine(n, func(ctx context.Context) ([]track.Endpoint, error) { return n.engine.RemoteOn(ctx, node) })
	return endpoints(all), ok
}

// countEvery is how often all remote endpoints are counted, while several are silent.
const countEvery = 10 * time.Second

// Remote implements suspect.World.
func (n *engineWorld) Remote() int {
	if time.Since(n.remoteAt) > countEvery {
		if all, ok := askEngine(n, n.engine.CountRemote); ok {
			n.remote, n.remoteAt = all, time.Now()
		}
	}
	return n.remote
}

// askEngine waits for an answer of the engine, unless it has failed to give one already.
func askEngine[A any](n *engineWorld, question func(context.Context) (A, error)) (answer A, ok bool) {
	if n.err != nil {
		return answer, false
	}
	ctx, cancel := context.WithTimeout(n.ctx, askTimeout)
	defer cancel()
	answer, n.err = question(ctx)
	return answer, n.err == nil
}

// AnySeen implements suspect.World.
func (n *engineWorld) AnySeen() bool {
	seen, err := n.obs.AnySeen(n.ctx)
	return seen || err != nil
}

func endpoints(all []track.Endpoint) []suspect.Endpoint {
	es := make([]suspect.Endpoint, len(all))
	for i, e := range all {
		es[i] = suspect.Endpoint{At: e.At, Node: e.Node}
	}
	return es
}
