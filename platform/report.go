// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/ui"
)

// reporter turns what the parts of a proxy do into metrics and Events. It never
// blocks.
type reporter struct {
	metrics  *metrics.Metrics
	teller   events.Composer
	recorder *events.Recorder
	log      *slog.Logger

	mu      sync.Mutex
	dropped dropped // guarded by mu
}

// dropped is how many frontends whose stale flows will not be looked for were left out of the
// log since the last line about some.
type dropped struct {
	unlogged int
	at       time.Time // of that line
}

// droppedEvery is how often these are logged: each change of a namespace that has filled the
// queue drops some.
const droppedEvery = 10 * time.Second

func newReporter(node string, sources metrics.Sources, log *slog.Logger) *reporter {
	m := metrics.New(sources)
	return &reporter{metrics: m, teller: events.Composer{Node: node}, recorder: events.NewRecorder(m.EventWritten, log), log: log}
}

// synced reports a sync.
func (r *reporter) synced(s engine.Sync) {
	r.metrics.Synced(s)
	for _, change := range s.StateChanges {
		if e, ok := r.teller.ServiceState(change); ok {
			r.recorder.Add(e)
		}
	}
}

func (r *reporter) drifted(_ int, found []engine.Drift) {
	var by dataplane.Candidates
	if len(found) > 0 {
		by = found[0].By
	}
	r.recorder.Add(r.teller.Drifted(by))
}

func (r *reporter) problem(problem model.Problem) {
	r.metrics.Problem(problem)
	if e, ok := r.teller.Problem(problem); ok {
		r.recorder.Add(e)
	}
}

// silent reports endpoints that have stopped answering. The engine reports the problem.
func (r *reporter) silent(p model.Problem, observed bool) {
	r.recorder.Add(r.teller.Silent(p, observed))
}

// started reports the start of a proxy in the mode that was chosen.
func (r *reporter) started(version string, configured config.Mode, choice Choice) {
	r.recorder.Add(r.teller.Starting(version, string(choice.Name)))
	if first := choice.Trials[0]; first.Err != nil && configured != config.Auto {
		r.recorder.Add(r.teller.Fallback(string(first.Mode), string(choice.Name), first.Err))
	}
}

// switched reports that another mode is in use now.
func (r *reporter) switched(from, to config.Mode) {
	r.metrics.Mode(string(to))
	r.recorder.Add(r.teller.Switched(string(from), string(to)))
}

// flowsDropped reports frontends of a namespace whose stale flows will not be looked for.
func (r *reporter) flowsDropped(namespace string, frontends int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.dropped.at) < droppedEvery {
		r.dropped.unlogged += frontends
		return
	}
	r.log.Warn("conntrack cleanup queue full; dropping", "namespace", namespace, "frontends", frontends, "unlogged", r.dropped.unlogged)
	r.dropped = dropped{at: now}
}

// flowsCleaned reports an attempt to delete stale flows: UDP's, or TCP handshakes.
func (r *reporter) flowsCleaned(done flows.Report) {
	r.metrics.FlowsCleaned(done)
	if done.Err != nil {
		r.log.Warn("conntrack cleanup failed; retrying", "err", done.Err, "retry", done.Retry)
		return
	}
	r.log.Debug("stale flows deleted", "flows", done.Deleted, "frontends", done.Frontends, "took", done.Took)
}

// servers are the HTTP servers of a proxy. Each may be missing.
type servers struct {
	probes *health.Server // /healthz, /livez: for load balancers and kubelets
	pages  *health.Server // /metrics, /status: for Prometheus and people
	checks *health.Checks // healthCheckNodePorts of Services
}

// openServers binds the addresses of the configuration in a network. What is
// opened later, healthCheckNodePorts, listens there as well.
func openServers(ctx context.Context, c *config.Config, n network, from health.Sources, unserved func(model.PortID) bool, r *reporter, log *slog.Logger) (s servers, err error) {
	open := func(name, address string, failed func(error) events.Event) *health.Server {
		return &health.Server{
			Name: name, Address: address, Listen: n.Listen, HardFail: c.BindHardFail, Log: log,
			Failed: func(err error) { r.recorder.Add(failed(err)) },
		}
	}
	s.checks = health.NewChecks(health.ChecksOptions{
		Listen: n.Listen, Log: log,
		Healthy:  func() bool { return from.Health().Healthy() },
		Unserved: unserved,
		Failed:   func(svc model.ServiceName, port uint16, err error) { r.recorder.Add(r.teller.Check(svc, port, err)) },
	})
	if a := c.HealthAddress; a != "" {
		s.probes = open("health", a, r.teller.HealthAddress)
		s.probes.Handler = health.Probes(from.Health, r.metrics.Probed)
		if err := s.probes.Open(ctx); err != nil {
			return s, err
		}
	}
	if a := c.HTTPAddress; a != "" {
		s.pages = open("metrics", a, r.teller.MetricsAddress)
		s.pages.Handler = health.Pages(from)
		if err := s.pages.Open(ctx); err != nil {
			return s, err
		}
	}
	return s, nil
}

// run starts all of them.
func (s servers) run(start func(what string, run func(context.Context) error)) {
	if s.probes != nil {
		start("health", s.probes.Run)
	}
	if s.pages != nil {
		start("metrics", s.pages.Run)
	}
	start("health checks of Services", s.checks.Run)
}

func (s servers) Close() error {
	var errs []error
	for _, server := range []*health.Server{s.probes, s.pages} {
		if server != nil {
			errs = append(errs, server.Close())
		}
	}
	return errors.Join(errs...)
}

func (p *Proxy) pages() health.Sources {
	own := ui.Of(health.Shared(p.uiInput, uiAge))
	own.Top = p.top
	own.Trace = nil // every user of the node can open the pages, the control socket only root
	return health.Sources{
		Health:  p.health,
		Status:  p.state,
		Metrics: p.report.metrics.Handler(),
		SLIs:    p.report.metrics.SLIs(),
		Checked: p.report.metrics.Checked,
		Mode:    p.mode,
		Config:  func() any { return p.live.Load().Tree() },
		Flags:   func() map[string]string { return p.live.Load().Flags() },
		Version: p.version, Release: metrics.Kubernetes,
		UI:      ui.Handler(own),
		Query:   p.queryPage(),
		Profile: p.config.Profiling,
		Verbosity: func(v int) {
			p.log.Info("verbosity changed", "v", v)
			if p.Verbosity != nil {
				p.Verbosity(v)
			}
		},
		Review: p.source.review(),
		Large:  p.memory.around,
	}
}

// state is the state of now, of which status documents are made while they are written, with the
// Services of a filter.
func (p *Proxy) state(ctx context.Context) (func(question.Filter) any, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return func(only question.Filter) any {
		d, list := question.List(p.facts(), only, s)
		return list.In(d, "services")
	}, nil
}

// uiAge is how old the input of /ui may be: making one takes the engine's time.
const uiAge = 2 * time.Second

// uiInput is the input of /ui.
func (p *Proxy) uiInput(ctx context.Context) (*ui.Input, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return ui.InputOf(&question.Document{Snapshot: s, Facts: p.facts(), Plane: p.plane(), History: p.engine.History().List}), nil
}

// serviceManager is the one that has started this process and wants to be notified:
// sd_notify(3).
type serviceManager struct {
	send     func(state string) // systemd loses nothing that was sent
	watchdog time.Duration      // the longest time between keep-alives; 0 for none
	patience time.Duration      // how long a start may take before it counts as done
	tick     time.Duration      // how often the proxy is looked at
}

// openServiceManager returns the one that the environment names, or nil.
func openServiceManager(log *slog.Logger) *serviceManager {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("invalid WATCHDOG_USEC; watchdog disabled", "err", err)
	}
	m := &serviceManager{watchdog: watchdog, patience: 30 * time.Second, tick: 100 * time.Millisecond}
	m.send = func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("notifying the service manager failed", "state", state, "err", err)
		}
	}
	if ok, err := daemon.SdNotify(false, "STATUS=starting"); err == nil && !ok {
		return nil // not started by one
	}
	return m
}

// notify reports the proxy's state to the service manager until ctx ends: READY
// after the first sync, a line of status whenever that changes, and a keep-alive
// for the watchdog while the engine answers and a restart would not help.
//
// An API server that is down does not keep the node from starting: it may run on
// this very node. After a while of waiting the start counts as done, and the
// status has the missing parts.
func (m *serviceManager) notify(ctx context.Context, e *engine.Engine, health func() question.Health) {
	if m == nil {
		return
	}
	defer m.send(daemon.SdNotifyStopping)
	begun, ready, last, alive := time.Now(), false, "", time.Time{}
	tick := time.NewTicker(m.tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h := health()
		if line := statusLine(e.Current().Mode.Name, e.Status(), h); line != last {
			last = line
			m.send("STATUS=" + line)
		}
		if !ready && (h.Synced || time.Since(begun) > m.patience) { // after the status, which may be read next
			ready = true
			m.send(daemon.SdNotifyReady)
			tick.Reset(m.pace())
		}
		if m.watchdog > 0 && time.Since(alive) > m.watchdog/4 && h.Alive() && answers(ctx, e, m.watchdog/4) {
			alive = time.Now()
			m.send(daemon.SdNotifyWatchdog)
		}
	}
}

// pace is how often a proxy that is ready is looked at.
func (m *serviceManager) pace() time.Duration {
	if m.watchdog > 0 {
		return min(m.watchdog/4, 2*time.Second)
	}
	return 2 * time.Second
}

func answers(ctx context.Context, e *engine.Engine, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return e.Ping(ctx) == nil
}

// statusLine is what `systemctl status` shows.
func statusLine(mode config.Mode, s engine.Status, h question.Health) string {
	total := 0
	for _, n := range s.Services {
		total += n
	}
	line := fmt.Sprintf("mode %s, %s", mode, printable.Count(total, "Service"))
	if bad := total - s.Services[model.Programmed]; bad > 0 {
		line += fmt.Sprintf(", %d of them not fully programmed: see tandem status", bad)
	}
	if len(h.Reasons) > 0 {
		line += "; " + strings.Join(h.Reasons, "; ")
	}
	return printable.Text(line)
}
