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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
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
	RemoteAt(ctx context.Context, a netip.Addr) ([]track.Endpoint, error)
}

// failover ejects endpoints that have stopped answering. One goroutine looks at new
// connections and lets a suspect.Judge decide.
type failover struct {
	mode        config.Failover
	engine      proxied
	network     network
	flows       tracked // in modes that the kernel's table shows; nil if that cannot be read
	unavailable error   // why it cannot
	local       func(netip.Addr) bool
	log         *slog.Logger
	report      *reporter
	judge       *suspect.Judge // nil before the first look

	ejections, ejected, unchecked atomic.Int64
	spent                         atomic.Int64 // nanoseconds

	questions chan waitingFor // about flows that wait

	mu      sync.Mutex
	changed []netip.Addr
	probed  []probed
	probing int
	group   sync.WaitGroup // of SYNs under way

	given        model.Suspects  // what the engine was last given
	silent       []suspect.Group // what was last reported as ejected
	problems     []model.Problem
	failingSince time.Time // of looks; zero when the last one did not
	idle         bool      // the last look found nothing to do before a new flow comes
	searched     time.Time // when the table was last searched for flows that were lost sight of
	unanswered   bool      // the engine did not answer during the last look
	blind        bool      // logged that the mode cannot detect endpoints that do not answer
}

// newFailover returns nil where failover is off.
func newFailover(mode config.Failover, e proxied, n network, local func(netip.Addr) bool, r *reporter, log *slog.Logger) *failover {
	if mode == config.FailoverOff {
		return nil
	}
	return &failover{mode: mode, engine: e, network: n, local: local, report: r, log: log, questions: make(chan waitingFor)}
}

// probed is the result of a SYN.
type probed struct {
	at    netip.AddrPort
	state suspect.State
	sent  time.Time
}

// Bounds of our own SYNs: each is sent once, as the second would follow after a second.
const (
	maxProbes    = 256
	probeTimeout = 500 * time.Millisecond
)

// failurePause follows a look that failed.
const failurePause = 10 * time.Second

// decisionLife is how long endpoints stay ejected while looks fail: six looks. One
// that fails says nothing of the endpoints.
const decisionLife = time.Minute

const failoverSource = "endpoint failover"

// suspectsChanged takes ejected endpoints that a source has changed, on the engine's goroutine.
func (f *failover) suspectsChanged(all []netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changed = append(f.changed, all...)
}

// run looks at new connections until ctx ends.
func (f *failover) run(ctx context.Context) error {
	defer f.group.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	news, stop := f.news(ctx)
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case q := <-f.questions:
			q.answer <- f.answer(ctx, q.endpoints)
			continue
		case <-news:
		case <-timer.C:
		}
		stop()
		timer.Reset(f.cycle(ctx))
		news, stop = f.news(ctx)
	}
}

// news returns a channel that is closed when there may be new flows, until stop is called, if the last look
// found nothing else to do.
func (f *failover) news(ctx context.Context) (news chan struct{}, stop context.CancelFunc) {
	obs := f.observer()
	if !f.idle || obs == nil {
		return nil, func() {}
	}
	ctx, stop = context.WithCancel(ctx)
	news = make(chan struct{})
	f.group.Go(func() {
		obs.Wait(ctx)
		close(news)
	})
	return news, stop
}

// idlePause is the time between looks while there are no new flows: other things change, too.
const idlePause = 10 * time.Second

// cycle looks once, and returns the time until the next look.
func (f *failover) cycle(ctx context.Context) time.Duration {
	f.idle = false
	if !f.engine.Status().Synced {
		return time.Second
	}
	obs := f.observer()
	if f.logBlind(obs == nil); obs == nil {
		return failurePause
	}
	before := obs.Spent()
	decision, err := f.look(ctx, obs)
	f.spent.Add(int64(obs.Spent() - before))
	if err != nil {
		f.failed(ctx, err)
		return failurePause
	}
	f.failingSince = time.Time{}
	f.apply(decision)
	if f.idle = decision.Idle && f.room() == maxProbes; f.idle {
		return idlePause
	}
	return decision.Pause
}

// failed keeps the last decision after a look that failed, but no longer than
// decisionLife.
func (f *failover) failed(ctx context.Context, err error) {
	if f.judge != nil {
		f.judge.Abandon(time.Now())
	}
	switch {
	case ctx.Err() != nil:
	case f.failingSince.IsZero():
		f.log.Warn("reading conntrack failed; ejections frozen", "err", err, "retry", failurePause, "keep", decisionLife)
		f.failingSince = time.Now()
	case time.Since(f.failingSince) >= decisionLife && len(f.given)+len(f.problems) > 0:
		f.log.Warn("conntrack still unreadable; failover disabled", "err", err)
		f.forget()
	}
}

// forget ends all ejections: nothing could refute them any more.
func (f *failover) forget() {
	f.judge = nil
	f.apply(suspect.Decision{})
}

// observer is that of the mode in use; nil where it has none.
func (f *failover) observer() observer {
	plane := f.engine.Current()
	if o, ok := plane.Backend.(relay.Backend); ok {
		if f.flows != nil {
			f.flows.Stop()
		}
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
		Object: failoverSource, Why: model.WhyUnsupported, Detail: fmt.Sprintf("conntrack does not show new connections: %v", f.unavailable),
	}})
}

// look is one cycle of the Judge. Where the engine does not answer, its last decision is kept
// anyway: the Judge decides nothing that it could not look up.
func (f *failover) look(ctx context.Context, obs observer) (d suspect.Decision, err error) {
	if f.judge == nil {
		if err := f.begin(ctx, obs); err != nil {
			return d, err
		}
	}
	f.deliver()
	if _, err := f.read(ctx, obs); err != nil {
		return d, err
	}
	w := &engineWorld{ctx: ctx, failover: f}
	for _, at := range f.judge.Review(time.Now(), w, f.room()) {
		f.probe(ctx, at)
	}
	f.deliver()
	d = f.judge.Decide(time.Now())
	if w.err != nil && !f.unanswered && ctx.Err() == nil {
		f.log.Warn("endpoint lookup failed; ejection delayed", "err", w.err)
	}
	f.unanswered = w.err != nil
	return d, nil
}

// maxPrior is how many endpoints, and flows, are taken over from before the start.
const maxPrior = 4096

// begin makes a Judge that knows of the time before as much as conntrack still shows.
func (f *failover) begin(ctx context.Context, obs observer) error {
	if _, err := obs.New(ctx, func(suspect.Flow, suspect.State, time.Time) {}); err != nil {
		return err
	}
	answered, waiting, err := obs.Prior(ctx, f.local, maxPrior)
	if err != nil {
		return err
	}
	now := time.Now()
	f.judge = suspect.New(now, answered...)
	for _, flow := range waiting[:min(len(waiting), maxPrior)] {
		f.judge.Saw(flow, suspect.Waiting, now, now)
	}
	if len(waiting) > maxPrior {
		f.judge.Lost(now)
	}
	return nil
}

// read shows the Judge the new flows, and the states of those that it waits for. It reports whether the new ones were
// all.
func (f *failover) read(ctx context.Context, obs observer) (all bool, err error) {
	now := time.Now()
	all, err = obs.New(ctx, func(flow suspect.Flow, s suspect.State, since time.Time) { f.judge.Saw(flow, s, since, now) })
	if err != nil {
		return false, err
	}
	if !all {
		f.judge.Lost(now)
	}
	return all, obs.States(ctx, f.judge.Due(now), func(i int, s suspect.State) { f.judge.Checked(i, s, now) })
}

// searchPause is the least time between searches for flows that were lost sight of: while there are more new
// connections than are reported, a search finds only those of the moment.
const searchPause = 10 * time.Second

// search walks over the whole table for the flows that wait where the Judge has lost sight of some. All new ones are
// seen by now, so that one search after a burst of connections serves all questions that follow. One that fails leaves
// answers incomplete, and says nothing of the endpoints.
func (f *failover) search(ctx context.Context, obs observer) {
	now := time.Now()
	if !f.judge.Overlooks(now) || now.Sub(f.searched) < searchPause {
		return
	}
	f.searched = now
	waiting, err := obs.Waiting(ctx, maxPrior)
	switch {
	case err != nil:
		f.log.Debug("searching conntrack for flows that wait failed", "err", err)
	case len(waiting) <= maxPrior:
		f.judge.Found(waiting, now)
	}
}

// waitingFor asks for the flows to endpoints that have no answer.
type waitingFor struct {
	endpoints []netip.Addr
	answer    chan waiting
}

// waiting are the flows to some endpoints that may have no answer, and whether those are all of them.
type waiting struct {
	flows    []suspect.Flow
	complete bool
}

// waiting returns the flows to endpoints that may have no answer.
func (f *failover) waiting(ctx context.Context, endpoints []netip.Addr) waiting {
	q := waitingFor{endpoints, make(chan waiting, 1)}
	select {
	case f.questions <- q:
		return <-q.answer
	case <-ctx.Done():
		return waiting{}
	}
}

func (f *failover) answer(ctx context.Context, endpoints []netip.Addr) (all waiting) {
	obs := f.observer()
	if obs == nil || f.judge == nil {
		return all
	}
	seen, err := f.read(ctx, obs)
	if err != nil {
		f.failed(ctx, err)
		return all
	}
	if seen {
		f.search(ctx, obs)
	}
	all.complete = len(endpoints) > 0
	now := time.Now()
	for _, a := range endpoints {
		these, complete := f.judge.Waiting(a, now)
		all.flows = append(all.flows, these...)
		all.complete = all.complete && complete
	}
	return all
}

// Above maxAsked endpoints, scanning the flow table is cheaper than asking per endpoint.
const maxAsked = 256

// handshakes deletes the TCP flows that wait for endpoints that are gone: by their addresses where failover knows
// all of them, so that nothing is searched.
type handshakes struct {
	flowTable
	failover *failover // nil where it is off
}

var _ flows.Table = handshakes{}

func (h handshakes) Delete(ctx context.Context, matches []flows.Match, stale func(flows.Flow) bool) (int, error) {
	gone := map[netip.Addr]struct{}{}
	for _, m := range matches {
		for _, at := range m.Gone {
			gone[at.Addr()] = struct{}{}
		}
	}
	if h.failover == nil || len(gone) > maxAsked {
		return h.flowTable.Delete(ctx, matches, stale)
	}
	w := h.failover.waiting(ctx, slices.Collect(maps.Keys(gone)))
	if !w.complete {
		return h.flowTable.Delete(ctx, matches, stale)
	}
	return h.DeleteThese(ctx, w.flows, stale)
}

// deliver passes the Judge the notices since the last call.
func (f *failover) deliver() {
	f.mu.Lock()
	changed, results := f.changed, f.probed
	f.changed, f.probed = nil, nil
	f.mu.Unlock()
	now := time.Now()
	f.judge.Changed(changed, now)
	for _, r := range results {
		f.judge.Probed(r.at, r.state, r.sent, now)
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
	sent := time.Now()
	f.group.Go(func() {
		state := f.connect(ctx, at)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.probing--
		f.probed = append(f.probed, probed{at, state, sent})
	})
}

// connect connects to an endpoint and closes the connection. A refusal is an answer, too. What fails
// here, for want of ports or memory, is no silence.
func (f *failover) connect(ctx context.Context, at netip.AddrPort) suspect.State {
	err := f.network.Do(func() error {
		d := net.Dialer{Timeout: probeTimeout}
		c, err := d.DialContext(ctx, "tcp", at.String())
		if err != nil {
			return err
		}
		return c.Close()
	})
	var timeout net.Error
	switch {
	case err == nil, errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return suspect.Answered
	case ctx.Err() != nil:
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, syscall.EHOSTUNREACH):
		return suspect.Waiting
	}
	return suspect.Unknown
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
	f.ejected.Store(int64(silent))
	f.unchecked.Add(int64(d.Unchecked))
	f.logReturns(d.Verdicts)
	problems := f.currentProblems(d)
	for i, g := range d.Silent {
		if !slices.ContainsFunc(f.silent, func(was suspect.Group) bool { return was.Name == g.Name }) {
			f.report.silent(problems[i], f.mode == config.FailoverObserve)
		}
	}
	f.silent = d.Silent
	if !slices.Equal(problems, f.problems) {
		f.problems = problems
		f.engine.Problems(failoverSource, slices.Clone(problems))
	}
}

// logReturns counts the ejections, and logs their ends: those of one node together.
func (f *failover) logReturns(all []suspect.Verdict) {
	names := map[string]int{}
	for _, v := range all {
		if v.Silent {
			f.ejections.Add(1)
		} else {
			names[v.Name]++
		}
	}
	for _, v := range all {
		if n := names[v.Name]; !v.Silent && n > 0 {
			f.log.Info("endpoints readmitted", "of", v.Name, "addresses", n, "why", v.Detail, "after", v.Elapsed.Round(time.Millisecond))
			delete(names, v.Name)
		}
	}
}

// currentProblems returns a problem for each group of a decision, in their order, and those of the whole node.
func (f *failover) currentProblems(d suspect.Decision) (all []model.Problem) {
	what := "addresses"
	if f.mode == config.FailoverObserve {
		what = "addresses would be ejected (observe)"
	}
	for _, g := range d.Silent {
		all = append(all, model.Problem{Object: "endpoints of " + g.Name, Why: model.WhyUnanswered, Detail: fmt.Sprintf("%d %s: %s", g.Addrs, what, g.Detail)})
	}
	add := func(why model.Reason, detail string) {
		all = append(all, model.Problem{Object: failoverSource, Why: why, Detail: detail})
	}
	if d.OneWay {
		add(model.WhyUnsupported, "asymmetric routing: endpoints answer this node, but their answers to clients bypass it; no endpoint is ejected")
	}
	if len(d.Exempt) > 0 {
		add(model.WhyUnanswered, fmt.Sprintf("more than a third of the endpoints in use of %s do not answer: more likely a fault of this node's network, so none of them is ejected", namespaces(d.Exempt)))
	}
	if d.Full {
		add(model.WhyUnsupported, "too many endpoint addresses to watch: the least recently used are skipped, beginning with the namespaces that have the most")
	}
	return all
}

// namespaces names some.
func namespaces(all []string) string {
	const most = 3
	if len(all) == 1 {
		return "namespace " + all[0]
	}
	return "namespaces " + printable.List(all, most)
}

// stats are for the metrics.
func (f *failover) stats() metrics.Failover {
	return metrics.Failover{
		Ejections: f.ejections.Load(), Ejected: f.ejected.Load(), Unchecked: f.unchecked.Load(), Spent: time.Duration(f.spent.Load()),
	}
}

// engineWorld is suspect.World by the engine's endpoints, during one look. After an error
// nothing more is asked.
type engineWorld struct {
	*failover
	ctx context.Context
	of  map[asked][]suspect.Endpoint
	err error
}

// askTimeout is how long a look waits for the engine, which may be busy with a sync.
const askTimeout = 5 * time.Second

// asked is what endpoints are asked by: any of these.
type asked struct {
	frontend netip.AddrPort
	service  model.ServiceName
	addr     netip.Addr
}

var _ suspect.World = (*engineWorld)(nil)

func (w *engineWorld) Of(f suspect.Flow) ([]suspect.Endpoint, bool) {
	key := asked{frontend: f.Frontend}
	if f.Port != nil {
		key.service = f.Port.Service
	}
	return w.ask(key, func(ctx context.Context) ([]track.Endpoint, error) {
		return w.engine.RemoteOf(ctx, key.frontend, key.service)
	})
}

func (w *engineWorld) At(a netip.Addr) ([]suspect.Endpoint, bool) {
	return w.ask(asked{addr: a}, func(ctx context.Context) ([]track.Endpoint, error) { return w.engine.RemoteAt(ctx, a) })
}

// ask waits for an answer of the engine, unless it has failed to give one already. Each
// answer holds for the whole look.
func (w *engineWorld) ask(key asked, question func(context.Context) ([]track.Endpoint, error)) ([]suspect.Endpoint, bool) {
	if all, ok := w.of[key]; ok {
		return all, true
	}
	if w.err != nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(w.ctx, askTimeout)
	defer cancel()
	found, err := question(ctx)
	if err != nil {
		w.err = err
		return nil, false
	}
	all := make([]suspect.Endpoint, len(found))
	for i, e := range found {
		all[i] = suspect.Endpoint{At: e.At, Node: e.Node, Namespace: e.Service.Namespace}
	}
	if w.of == nil {
		w.of = map[asked][]suspect.Endpoint{}
	}
	w.of[key] = all
	return all, true
}
