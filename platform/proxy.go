// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/tracing"
	"github.com/tandem-proxy/tandem/core/watch"
)

// Proxy is a whole proxy, opened and ready to run.
type Proxy struct {
	// Verbosity, if set before Run, changes how much is logged: /debug/flags/v asks
	// for it, on any goroutine.
	Verbosity func(int)

	system  system
	version string
	log     *slog.Logger
	config  *config.Config                // as at the start
	live    atomic.Pointer[config.Config] // as last changed by Reconfigure
	base    *config.Config                // what the parts were opened with; Reconfigure's own

	opened []io.Closer // closed by Close, the last first

	lock      Held
	network   network
	machine   *machine
	source    source
	choice    Choice         // at the start
	engine    *engine.Engine // owns the data plane in use
	switcher  *switcher
	writers   writers           // nil where the system does not report them
	listeners Listening         // nil where they cannot be told
	tracing   *tracing.Exporter // nil where changes are not traced
	flows     [2]flowTable      // for each of the cleaners; nil where there are none
	flowsErr  error             // why flows could not be opened, until it is logged
	tracked   flowLister        // all of them, for answers; nil where they are not listed
	cleaners  [2]*flows.Cleaner // of stale UDP flows, of TCP handshakes
	failover  *failover         // nil where it is off
	watcher   *watcher          // of new connections
	report    *reporter
	servers   servers
	kernel    sleep.Turn // of the one query at a time that reads the data plane
	answers   sleep.Turn // of the one at a time that does not
	memory    *releaser

	group   sync.WaitGroup  // of what Run starts
	running context.Context // from Open to the end of Run
	stop    context.CancelFunc
}

// Status returns the engine's status. It never blocks.
func (p *Proxy) Status() engine.Status { return p.engine.Status() }

// Snapshot returns everything the engine knows.
func (p *Proxy) Snapshot(ctx context.Context) (*engine.Snapshot, error) {
	return p.engine.Snapshot(ctx)
}

// Document returns the status document.
func (p *Proxy) Document(ctx context.Context) (question.Status, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return question.Status{}, err
	}
	return question.Of(p.facts(), question.Filter{}, s), nil
}

func (p *Proxy) facts() question.Facts {
	return question.Facts{
		Version: p.version, Node: p.config.NodeName, Mode: p.mode(), Fallback: p.fallback(), Offload: p.config.Accelerate == config.Flowtable, Source: p.config.Source(), Health: p.health(), Inputs: p.source.inputs(),
	}
}

// ages are how many seconds ago each kind of input was last known to be up to date.
func (p *Proxy) ages() map[string]float64 {
	all := map[string]float64{}
	for _, in := range p.source.inputs() {
		all[in.Name] = in.Age
	}
	return all
}

// fallback is why the mode in use is not the one that was configured at the start; empty
// when it is, or was chosen since.
func (p *Proxy) fallback() string {
	if p.mode() != string(p.choice.Name) {
		return ""
	}
	return p.choice.Fallback()
}

// mode is the name of the mode in use.
func (p *Proxy) mode() string { return string(p.engine.Current().Mode.Name) }

// health judges the proxy.
func (p *Proxy) health() question.Health {
	return question.HealthOf(p.Status(), 2*p.live.Load().SyncPeriod, p.source.stale())
}

// packets are counted by the backend in use, if it does.
func (p *Proxy) packets() dataplane.Packets {
	return p.engine.Current().Packets()
}

// relays are the counters of the userspace mode, if it is in use.
func (p *Proxy) relays() (relay.Stats, bool) {
	if c, ok := p.engine.Current().Backend.(relay.Backend); ok {
		return c.Relays(), true
	}
	return relay.Stats{}, false
}

// failovers are the counters of endpoint failover, if it is not off.
func (p *Proxy) failovers() (metrics.Failover, bool) {
	if p.failover == nil {
		return metrics.Failover{}, false
	}
	return p.failover.stats(), true
}

// suspectsChanged takes ejected endpoints that a source has changed.
func (p *Proxy) suspectsChanged(all []netip.Addr) {
	if p.failover != nil {
		p.failover.suspectsChanged(all)
	}
}

// unserved reports whether load balancer IPs of a port are not programmed.
func (p *Proxy) unserved(id model.PortID) bool {
	return slices.ContainsFunc(p.engine.Current().Backend.Gaps(id), func(g model.Gap) bool { return g.Unserved })
}

// writing precedes each sync, on the engine's goroutine.
func (p *Proxy) writing(deltas []model.Delta) {
	for _, c := range p.cleaners {
		if c != nil {
			c.Prepare(deltas)
		}
	}
}

// synced follows each sync, on the engine's goroutine.
func (p *Proxy) synced(s engine.Sync) {
	plane := p.engine.Current()
	p.report.synced(s)
	p.tracing.Synced()
	p.memory.changed()
	p.servers.checks.Update(s.Host, s.Applied, s.Gaps)
	for _, c := range p.cleaners {
		if c != nil && plane.Mode.Conntrack {
			c.Update(s.Host, s.Applied)
			c.Update(s.Host, s.Restored)
		}
	}
}

// connected takes the addresses of the API server, for each new connection.
func (p *Proxy) connected(all []netip.AddrPort) {
	if p.machine.setAPIServers(all) {
		p.engine.HostChanged()
	}
}

// host merges the configuration with this machine's Node, the ranges of cluster IPs
// and the machine's facts. The engine calls it on its own goroutine.
func (p *Proxy) host(n *model.Node, cidrs []*model.ServiceCIDR) (*model.Host, []model.Problem) {
	c, machine := p.live.Load(), p.machine.now()
	return resolve.Host(c, n, cidrs, machine), resolve.HostProblems(c, n, cidrs, machine, true)
}

// Open chooses the mode and opens everything that belongs to the network namespace
// of the calling thread: its lock, the data plane, the flow table and the listening
// sockets. Close it, or Run it.
func Open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	return thisSystem().open(ctx, c, version, log)
}

func (s system) open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	s.limitMemory(log)
	p := &Proxy{system: s, version: version, log: log, config: c, base: c, kernel: make(sleep.Turn, 1), answers: make(sleep.Turn, 1)}
	p.memory = newReleaser(p.releaseText, s.collect)
	p.running, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	p.live.Store(c)
	p.report = newReporter(c.NodeName, metrics.Sources{
		Version: version, Status: p.Status, Packets: p.packets, Relays: p.relays, Failover: p.failovers,
		Ages: p.ages,
	}, log)
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Proxy) open(ctx context.Context) (err error) {
	if p.source, err = openSource(p.config, p.log, watch.Hooks{Connected: p.connected, Dial: p.system.dial}); err != nil {
		return err
	}
	p.report.metrics.Register(p.source.metrics()...)
	lock, err := p.system.lock()
	if err != nil { // what comes with an error may be a nil pointer in a value that is not nil, and is not closed
		return err
	}
	p.lock = lock
	p.keep(lock)
	network, err := p.system.network()
	if err != nil {
		return err
	}
	p.network = network
	p.keep(network)
	if list := p.system.listFlows; list != nil {
		p.tracked = list()
		p.keep(p.tracked)
	}
	a, err := p.system.addresses()
	if p.machine = openMachine(a, err, p.log); err == nil {
		p.keep(a)
	}
	if p.machine.facts.Salt, err = p.system.salt(); err != nil {
		p.log.Warn("the salt cannot be stored; mode nftables loses the session affinity of IPv4 clients at the next restart", "err", err)
	}
	if open := p.system.listeners; open != nil {
		if p.listeners, err = open(); err != nil {
			p.listeners = nil
			p.log.Warn("processes that listen on this node are unknown; external IPs that are its own addresses are not served", "err", err)
		} else {
			p.keep(p.listeners)
		}
	}
	if open := p.system.writers; open != nil {
		if p.writers, err = open(); err != nil {
			p.writers = nil
			p.log.Debug("other writers are not recorded", "err", err)
		} else {
			p.keep(p.writers)
			ctx, p.running = p.writers.Own(ctx), p.writers.Own(p.running)
		}
	}
	if p.system.modes == nil { // all of them share the sockets of relays
		handover := p.system.handover(p.log)
		p.system.modes = func() []dataplane.Mode { return modesOn(runtime.GOOS, handover) }
	}
	if err := p.openEngine(ctx); err != nil {
		return err
	}
	p.flowsErr = p.openFlows()
	p.logFlowsError(p.choice.Mode)
	p.report.metrics.Mode(string(p.choice.Name))
	if most := p.config.MetricsServices; most > 0 {
		counts := &scraped{proxy: p}
		p.report.metrics.Services(most, p.log, counts.now)
	}
	if p.tracing, err = tracing.New(tracing.Options{Endpoint: p.config.TraceEndpoint, Node: p.config.NodeName, Version: p.version, Mode: string(p.choice.Name), Log: p.log}); err != nil {
		return err
	}
	p.servers, err = openServers(ctx, p.config, p.network, p.pages(), p.unserved, p.report, p.log)
	p.keep(p.servers)
	return err
}

// keep has Close close something that was opened.
func (p *Proxy) keep(c io.Closer) { p.opened = append(p.opened, c) }

// logFlowsError warns if a mode needs the tracked flows that could not be opened, once.
func (p *Proxy) logFlowsError(mode dataplane.Mode) {
	if p.flowsErr != nil && mode.Conntrack {
		p.log.Warn("opening conntrack failed", "mode", mode.Name, "err", p.flowsErr)
		p.flowsErr = nil
	}
}

// switched reports that another mode is in use now.
func (p *Proxy) switched(from, to config.Mode) {
	p.report.switched(from, to)
	p.logFlowsError(p.engine.Current().Mode)
}

// openFlows opens the tables of tracked flows. An error names the feature that does not work without them.
func (p *Proxy) openFlows() error {
	for i := range p.flows {
		table, err := p.system.flows()
		if err != nil {
			return fmt.Errorf("%s, no failover: %w", [...]string{"no UDP cleanup", "flows of unanswered handshakes stay"}[i], err)
		}
		p.flows[i] = table
		p.keep(table)
	}
	if p.failover == nil {
		return nil
	}
	p.flows[1] = handshakes{p.flows[1], p.failover}
	flows, err := p.system.observe()
	if p.failover.unavailable = err; err != nil {
		return fmt.Errorf("no failover: %w", err)
	}
	p.failover.flows = flows
	p.keep(flows)
	return nil
}

// openEngine chooses the mode and opens its backend, which is the engine's from
// then on.
func (p *Proxy) openEngine(ctx context.Context) (err error) {
	if p.choice, err = p.system.choose(ctx, p.config, p.log); err != nil {
		return err
	}
	first, cancel := ctx, func() {}
	if p.choice.Await != nil {
		first, cancel = context.WithTimeout(ctx, openPatience)
	}
	defer cancel()
	backend, err := p.openBackend(first)
	var later func(context.Context) (dataplane.Backend, error)
	switch {
	case errors.Is(err, dataplane.ErrNotReady) && ctx.Err() == nil:
		p.log.Warn("mode not ready; waiting", "mode", p.choice.Name, "err", err)
		backend, later = dataplane.Unopened(), p.openBackend
	case err != nil:
		return err
	}
	options := engine.Options{
		Host:       p.host,
		NodeName:   p.config.NodeName,
		Mode:       p.choice.Mode,
		Backend:    backend,
		Open:       later,
		AuditEvery: p.config.AuditPeriod,
		MinGap:     p.config.MinSyncPeriod,
		Log:        p.log,
		Hooks:      engine.Hooks{Writing: p.writing, Synced: p.synced, Drifted: p.report.drifted, Problem: p.report.problem, Suspects: p.suspectsChanged, Audited: p.memory.read},
	}
	if p.writers != nil {
		options.Writers = p.writers
	}
	if p.listeners != nil {
		options.Listeners = p.listeners.At
	}
	p.engine = engine.New(options)
	p.keep(p.engine)
	p.engine.History().Measure(p.system.usage)
	p.failover = newFailover(p.config.Failover, p.engine, p.network, p.machine.local, p.report, p.log)
	p.watcher = &watcher{engine: p.engine, network: p.network, open: p.system.watch, running: p.running, group: &p.group}
	p.switcher = &switcher{
		engine: p.engine, network: p.network, log: p.log, switched: p.switched, running: p.running, group: &p.group,
		modes: p.system.all(), privileged: p.system.privileged, clean: make(chan struct{}), turn: make(sleep.Turn, 1), retiring: map[config.Mode]retirement{},
	}
	return nil
}

// openPatience is how long a start waits for what other programs make for the data plane. Until then
// it answers no question; afterwards the engine goes on to look for it.
const openPatience = 5 * time.Second

// openBackend opens the data plane of the mode that was chosen.
func (p *Proxy) openBackend(ctx context.Context) (backend dataplane.Backend, err error) {
	err = p.network.Do(func() (err error) {
		backend, err = p.choice.Open(ctx, p.config, p.log)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mode %s: %w", p.choice.Name, err)
	}
	return backend, nil
}

// Run works until ctx ends, and closes everything. What is programmed stays:
// Services go on working while no proxy runs.
func (p *Proxy) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, p.stop)()
	ctx = p.running
	hooks := flows.Hooks{Cleaned: p.report.flowsCleaned, Dropped: p.report.flowsDropped, Account: p.system.account}
	for i, start := range []func(context.Context, flows.Table, flows.Hooks) *flows.Cleaner{flows.Start, flows.StartHandshakes} {
		if p.flows[i] != nil {
			p.cleaners[i] = start(ctx, p.flows[i], hooks)
		}
	}
	var mu sync.Mutex
	var failed []error
	start := func(what string, run func(context.Context) error) {
		p.group.Go(func() {
			defer p.stop() // any of these that returns stops the proxy
			if err := run(ctx); err != nil && ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	start("engine", p.engine.Run)
	start("source", func(ctx context.Context) error {
		// The peak of a start's memory is at its end, after all was resolved, compiled and written,
		// which needs little of the program that reading has needed: some 25 MB.
		p.system.garbage(readPercent)
		return p.source.run(ctx, p.engine, func() {
			p.system.garbage(writePercent)
			p.releaseText()
		})
	})
	start("control", func(ctx context.Context) error {
		// For good: a switch that is under way is waited for, and no other begins.
		defer func() { p.switcher.turn <- struct{}{} }()
		return serveControl(ctx, p.lock, p.log, p.memory.around(controlHandler(p.Switch, p.snapshotRoute(), p.queryRoute(), p.statusRoute())))
	})
	if p.failover != nil {
		start("endpoint failover", p.failover.run)
	}
	p.group.Go(func() { p.machine.follow(ctx, p.engine.HostChanged) })
	p.group.Go(func() { p.listenForWriters(ctx) })
	if p.tracing != nil {
		p.group.Go(func() { p.tracing.Run(ctx, p.engine.History()) })
	}
	p.group.Go(func() { p.logProgress(ctx) })
	p.group.Go(func() {
		if p.releaseStartMemory(ctx) {
			p.memory.run(ctx)
		}
	})
	p.group.Go(func() { p.switcher.removeLeftovers(ctx, p.config) })
	p.group.Go(func() { openServiceManager(p.log).notify(ctx, p.engine, p.health) })
	start("events", func(ctx context.Context) error { return p.report.recorder.Run(ctx, p.source.events) })
	p.report.started(p.version, p.config.Mode, p.choice)
	p.servers.run(start)
	p.group.Wait()
	p.stopReading()
	return errors.Join(append(failed, p.Close())...)
}

// stopReading waits for the answer that is being read of the data plane, for which a client may have hung up, but not
// forever; and no other one is begun. So no answer is read over sockets that Close closes.
func (p *Proxy) stopReading() {
	ctx, cancel := context.WithTimeout(context.Background(), readGrace)
	defer cancel()
	if p.kernel.Take(ctx) != nil {
		p.log.Warn("reading the data plane timed out; abandoned")
	}
}

// listenForWriters records which other programs write to the data plane.
func (p *Proxy) listenForWriters(ctx context.Context) {
	if p.writers == nil {
		return
	}
	p.engine.Listening(true)
	defer p.engine.Listening(false)
	if err := p.writers.Listen(ctx, p.engine.Noticed); err != nil {
		p.log.Warn("listening for other writers failed; drift is shown without their names", "err", err)
	}
}

// Close releases everything that Open opened. What is programmed stays.
func (p *Proxy) Close() error {
	p.stop()
	var errs []error
	for _, c := range p.cleaners {
		if c != nil {
			c.Close()
		}
	}
	for _, c := range slices.Backward(p.opened) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Ready waits until everything that the source delivered is programmed for the
// first time, and reports whether that came before ctx ended.
func (p *Proxy) Ready(ctx context.Context) bool {
	select {
	case <-p.engine.Programmed():
	case <-ctx.Done():
	}
	return p.Status().Synced
}

// Switch changes the mode while Services are in use, as switcher.switchTo does, which calls phase with each phase.
func (p *Proxy) Switch(ctx context.Context, to config.Mode, phase func(string)) (Switched, error) {
	return p.switcher.switchTo(ctx, to, p.live.Load(), phase)
}

// Reconfigure applies what a running proxy can of a new configuration: config.Diff
// decides which part that is. The rest is reported as problems, until a restart or until the
// configuration is as it was. Where is the file it comes from. It returns the
// configuration that is in effect then, and what needs a restart. It is safe for
// concurrent use with all but itself.
func (p *Proxy) Reconfigure(next *config.Config, where string) (live *config.Config, restart []config.Change) {
	if next.Mode != p.base.Mode {
		p.changeMode(next)
	}
	_, restart = config.Diff(p.base, next)
	pending := make([]model.Problem, len(restart))
	for i, c := range restart {
		pending[i] = model.Problem{
			Object: "configuration " + c.Name, Where: where, Why: model.WhyRestart,
			Detail: "from " + shown(c.Old) + " to " + shown(c.New) + ", and " + c.Restart,
		}
	}
	p.engine.Problems("configuration", pending)
	live = config.Merge(p.base, next)
	before := p.live.Swap(live)
	p.engine.SetTiming(live.AuditPeriod, live.MinSyncPeriod)
	p.setChanged(before, live)
	return live, restart
}

// setChanged sets the parameters of Prepare again, but for those of conntrack and of memory that have not changed.
func (p *Proxy) setChanged(before, live *config.Config) {
	changed := *live
	if reflect.DeepEqual(before.Conntrack, live.Conntrack) {
		changed.Conntrack = config.Conntrack{}
	}
	if reflect.DeepEqual(before.OOMScoreAdj, live.OOMScoreAdj) {
		changed.OOMScoreAdj = nil
	}
	err := p.network.Do(func() error {
		p.system.set(&changed, p.log)
		return nil
	})
	if err != nil {
		p.log.Warn("setting system parameters failed", "err", err)
	}
}

// changeMode switches to the mode of a configuration. Where that
// fails the mode waits for a restart, like what else needs one.
func (p *Proxy) changeMode(next *config.Config) {
	var choice Choice
	err := p.network.Do(func() (err error) {
		choice, err = p.system.choose(p.running, next, p.log)
		return err
	})
	opened := err == nil && choice.Name != p.engine.Current().Mode.Name
	if opened {
		_, err = p.switcher.switchTo(p.running, choice.Name, next, func(string) {})
	}
	if err != nil {
		p.log.Error("changing the mode failed; restart to retry", "mode", next.Mode, "err", err)
		return
	}
	base := *p.base
	base.Mode = next.Mode
	if opened { // with these; everything else is as it was, and all is where the mode is in use already
		base.MasqueradeBit, base.NodePorts = next.MasqueradeBit, next.NodePorts
		base.IPVS, base.Windows, base.Conntrack.TCPBeLiberal = next.IPVS, next.Windows, next.Conntrack.TCPBeLiberal
	}
	p.base = &base
}

// Misconfigured reports the problems of a configuration that was ignored.
func (p *Proxy) Misconfigured(ps []config.Finding, where string) {
	problems := make([]model.Problem, len(ps))
	for i, f := range ps {
		object := "configuration"
		if f.Name != "" {
			object += " " + f.Name
		}
		if f.Where == "" {
			f.Where = where
		}
		problems[i] = model.Problem{Object: object, Where: f.Where, Why: model.WhyInvalid, Detail: f.Text + "; keeping the configuration in effect"}
	}
	p.engine.Problems("configuration", problems)
}

func shown(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// source is where Services come from and Events go to: a folder of manifests, or
// else the API server.
type source struct {
	folder *manifests.Source // nil where that is the API server
	server *watch.Source     // nil where that is a folder
	events events.Sink
}

// openSource opens the source that a configuration names. The hooks are of the API
// server, if it is that.
func openSource(c *config.Config, log *slog.Logger, hooks watch.Hooks) (source, error) {
	if c.Manifests != "" {
		folder := &manifests.Source{Dir: c.Manifests, NodePorts: c.NodePortRange, Log: log}
		return source{folder: folder, events: events.ToLog(log)}, nil
	}
	server, err := watch.Open(c, log, hooks)
	if err != nil {
		return source{}, err
	}
	writer, err := server.EventWriter()
	if err != nil {
		return source{}, err
	}
	return source{server: server, events: writer.Write}, nil
}

// run delivers objects to the engine until ctx ends. It calls delivered when there is nothing more
// to deliver of what was there at the start, before the engine hears of it.
func (s source) run(ctx context.Context, e *engine.Engine, delivered func()) error {
	delivered = sync.OnceFunc(delivered)
	if s.folder != nil {
		return s.folder.Run(ctx, sink{e, "manifests", delivered})
	}
	return s.server.Run(ctx, sink{e, "API server", delivered})
}

// review has the API server review tokens, where there is one.
func (s source) review() health.Review {
	if s.server == nil {
		return nil
	}
	return func(ctx context.Context, token, path string) (health.Grant, error) {
		switch user, allowed, err := s.server.Review(ctx, token, path); {
		case err != nil || user == "":
			return health.Unauthenticated, err
		case !allowed:
			return health.Forbidden, nil
		}
		return health.Granted, nil
	}
}

// metrics are those of the client of the API server.
func (s source) metrics() []prometheus.Collector {
	if s.server == nil {
		return nil
	}
	return watch.ClientMetrics()
}

// stale returns which inputs are out of date.
func (s source) stale() []string {
	switch {
	case s.server != nil:
		return s.server.Stale(time.Now())
	case s.folder != nil:
		return s.folder.Stale(time.Now())
	}
	return nil
}

// inputs returns how up to date each kind of input is.
func (s source) inputs() (all []question.Input) {
	now := time.Now()
	switch {
	case s.folder != nil:
		return []question.Input{{Name: "manifests", Age: s.folder.Age(now).Seconds()}}
	case s.server == nil:
		return nil
	}
	for _, r := range s.server.Resources() {
		all = append(all, question.Input{Name: r.Name, Age: r.Age(now).Seconds(), Version: r.Version, Objects: r.Objects, Err: r.Err, Unlisted: !r.Listed})
	}
	return all
}

// sink is the engine as a source sees it, whose name is that of its problems.
type sink struct {
	*engine.Engine
	source    string
	delivered func() // before Synced
}

func (s sink) Problems(ps []model.Problem) { s.Engine.Problems(s.source, ps) }

func (s sink) Synced(whole bool) {
	s.delivered()
	s.Engine.Synced(whole)
}
