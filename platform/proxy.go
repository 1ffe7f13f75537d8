// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/ui"
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

	lock     Held
	network  network
	machine  *machine
	source   source
	choice   Choice         // at the start
	engine   *engine.Engine // owns the data plane in use
	switcher *switcher
	writers  writers           // nil where the system does not tell
	drifted  chan struct{}     // of one: drift was found, and writers are to be heard
	flows    [2]flowTable      // for each of the cleaners; nil where there are none
	cleaners [2]*flows.Cleaner // of stale UDP flows, of TCP handshakes
	failover *failover         // nil where it is off
	report   *reporter
	servers  servers
	kernel   turn // of the one query at a time that reads the data plane
	memory   *releaser

	group   sync.WaitGroup  // of what Run starts
	running context.Context // from Open to the end of Run
	stop    context.CancelFunc
}

// Open chooses the mode and opens everything that belongs to the network namespace
// of the calling thread: its lock, the data plane, the flow table and the listening
// sockets. Close it, or Run it.
func Open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	return thisSystem().open(ctx, c, version, log)
}

func (s system) open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	s.limitMemory(log)
	p := &Proxy{system: s, version: version, log: log, config: c, base: c, kernel: make(turn, 1), drifted: make(chan struct{}, 1)}
	p.memory = newReleaser(p.releaseMemory)
	p.running, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	p.live.Store(c)
	p.report = newReporter(c.NodeName, metrics.Sources{
		Version: version, Status: p.Status, Packets: p.packets, Relays: p.relays, Failover: p.failovers,
		Ages: func() map[string]time.Duration { return p.source.ages() },
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
	if p.lock, err = p.system.lock(); err != nil {
		return err
	}
	if p.network, err = p.system.network(); err != nil {
		return err
	}
	a, err := p.system.addresses()
	p.machine = openMachine(a, err, p.log)
	if open := p.system.writers; open != nil {
		if p.writers, err = open(); err != nil {
			p.writers = nil
			p.log.Debug("who changes rules is not known", "err", err)
		}
	}
	if err := p.openEngine(ctx); err != nil {
		return err
	}
	if err := p.openFlows(); err != nil && p.choice.Conntrack {
		p.log.Warn("opening conntrack failed; stale UDP flows are kept, and endpoints that stop answering not passed over", "err", err)
	}
	p.report.metrics.Mode(string(p.choice.Name))
	p.servers, err = openServers(ctx, p.config, p.network, p.pages(), p.unserved, p.report, p.log)
	return err
}

// openFlows opens what works on tracked flows.
func (p *Proxy) openFlows() error {
	for i := range p.flows {
		table, err := p.system.flows()
		if err != nil {
			return err
		}
		p.flows[i] = table
	}
	if p.failover == nil {
		return nil
	}
	eyes, err := p.system.observe()
	if err == nil {
		p.failover.flows = eyes
	}
	return err
}

// openEngine chooses the mode and opens its backend, which is the engine's from
// then on.
func (p *Proxy) openEngine(ctx context.Context) (err error) {
	if p.choice, err = choose(ctx, p.system.modes(), p.config, p.log); err != nil {
		return err
	}
	backend, err := p.choice.OpenWhenReady(ctx, p.config)
	if err != nil {
		return fmt.Errorf("mode %s: %w", p.choice.Name, err)
	}
	p.engine = engine.New(engine.Options{
		Host:       p.host,
		NodeName:   p.config.NodeName,
		Mode:       p.choice.Mode,
		Backend:    backend,
		AuditEvery: p.config.AuditPeriod,
		MinGap:     p.config.MinSyncPeriod,
		Log:        p.log,
		Writers:    p.writersSince,
		Hooks:      engine.Hooks{Synced: p.synced, Drifted: p.report.drifted, Problem: p.report.problem, Trusted: p.trusted},
	})
	p.failover = newFailover(p.config.Failover, p.engine, p.network, p.report, p.log)
	p.switcher = &switcher{
		engine: p.engine, network: p.network, log: p.log, switched: p.report.switched, running: p.running, group: &p.group,
		modes: p.system.modes(), privileged: p.system.privileged, clean: make(chan struct{}), turn: make(turn, 1), retiring: map[config.Mode]retirement{},
	}
	return nil
}

// Run works until ctx ends, and closes everything. What is programmed stays:
// Services go on working while no proxy runs.
func (p *Proxy) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, p.stop)()
	ctx = p.running
	hooks := flows.Hooks{Cleaned: p.report.flowsCleaned, Dropped: p.report.flowsDropped}
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
	start("source", func(ctx context.Context) error { return p.source.run(ctx, p.engine) })
	start("control", func(ctx context.Context) error {
		// For good: a switch that is under way is waited for, and no other begins.
		defer func() { p.switcher.turn <- struct{}{} }()
		return serveControl(ctx, p.lock, p.log, p.memory.after(controlHandler(p.switchTo, p.snapshotRoute(), p.queryRoute())))
	})
	if p.failover != nil {
		start("endpoint failover", p.failover.run)
	}
	p.group.Go(func() { p.machine.follow(ctx, p.engine.HostChanged) })
	p.group.Go(func() { p.hearWriters(ctx) })
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
	return errors.Join(append(failed, p.Close())...)
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
	errs = append(errs, p.servers.close())
	for _, table := range p.flows {
		if table != nil {
			errs = append(errs, table.Close())
		}
	}
	if p.writers != nil {
		errs = append(errs, p.writers.Close())
	}
	errs = append(errs, p.failover.close())
	if p.engine != nil {
		errs = append(errs, p.engine.Close())
	}
	errs = append(errs, p.machine.close())
	if p.network != nil {
		errs = append(errs, p.network.Close())
	}
	if p.lock != nil { // last: the rest needs it
		errs = append(errs, p.lock.Close())
	}
	return errors.Join(errs...)
}

// Status returns the engine's status. It never blocks.
func (p *Proxy) Status() engine.Status { return p.engine.Status() }

// hearFor is for how long after drift was found other writers are heard.
const hearFor = 10 * time.Minute

// hearWriters hears who else writes to the data plane, for a while after drift was found:
// all our own changes cost more meanwhile. So the first drift has no names.
func (p *Proxy) hearWriters(ctx context.Context) {
	if p.writers == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.drifted:
		}
		listening, stop := context.WithTimeout(ctx, hearFor)
		err := p.writers.Listen(listening)
		if stop(); err != nil {
			p.log.Warn("hearing who changes rules failed; drift is shown without names", "err", err)
			return
		}
	}
}

// writersSince tells who else has written to the data plane since a time. It is asked
// when drift was found.
func (p *Proxy) writersSince(t time.Time) []engine.Writer {
	if p.writers == nil {
		return nil
	}
	select {
	case p.drifted <- struct{}{}:
	default: // hearWriters goes on anyway
	}
	return p.writers.Since(t)
}

// Snapshot returns everything the engine knows.
func (p *Proxy) Snapshot(ctx context.Context) (*engine.Snapshot, error) {
	return p.engine.Snapshot(ctx)
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

// progressInterval is how often a start that takes long says what it waits for.
const progressInterval = 5 * time.Second

// logProgress says what a start waits for, until everything is programmed.
func (p *Proxy) logProgress(ctx context.Context) {
	begin := time.Now()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.engine.Programmed():
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			p.log.Info("still starting", "since", time.Since(begin).Round(time.Second), "waiting", strings.Join(p.health().Reasons, "; "))
		}
	}
}

// Switch changes the mode while Services are in use: the new one is programmed
// beside the old one, becomes the one in use, and then the old one is removed. When
// ctx ends before that, or the new mode cannot program everything, everything stays
// as it was.
func (p *Proxy) Switch(ctx context.Context, to config.Mode) (Switched, error) {
	return p.switchTo(ctx, to, func(string) {})
}

// switchTo is Switch with its phases.
func (p *Proxy) switchTo(ctx context.Context, to config.Mode, phase func(string)) (Switched, error) {
	return p.switcher.switchTo(ctx, to, p.live.Load(), phase)
}

// Document returns the status document.
func (p *Proxy) Document(ctx context.Context) (status.Document, error) {
	return p.document(ctx, status.Filter{})
}

// document is the status document with the Services of a filter.
func (p *Proxy) document(ctx context.Context, only status.Filter) (status.Document, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return status.Document{}, err
	}
	return p.documentOf(s, only), nil
}

func (p *Proxy) documentOf(s *engine.Snapshot, only status.Filter) status.Document {
	return status.Of(status.Facts{
		Only:    only,
		Version: p.version, Node: p.config.NodeName, Mode: p.mode(), Fallback: p.fallback(), Source: p.config.Source(), Health: p.health(), Inputs: p.source.inputs(),
	}, s)
}

// fallback says why the mode in use is not the one that was wanted at the start; empty
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
func (p *Proxy) health() status.Health {
	return status.HealthOf(p.Status(), 2*p.live.Load().SyncPeriod, p.source.stale())
}

func (p *Proxy) pages() health.Sources {
	return health.Sources{
		Health:  p.health,
		Status:  func(ctx context.Context, only status.Filter) (any, error) { return p.document(ctx, only) },
		Metrics: p.report.metrics.Handler(),
		SLIs:    p.report.metrics.SLIs(),
		Checked: p.report.metrics.Checked,
		Mode:    p.mode,
		Config:  func() any { return p.live.Load().Tree() },
		Flags:   func() map[string]string { return p.live.Load().Flags() },
		Version: p.version, Release: metrics.Kubernetes,
		UI:      ui.Handler(ui.Cached(p.picture, pictureAge)),
		Profile: p.config.Profiling,
		Verbosity: func(v int) {
			p.log.Info("verbosity changed", "v", v)
			if p.Verbosity != nil {
				p.Verbosity(v)
			}
		},
		Asked: p.memory.note,
	}
}

// pictureAge is how old what /ui shows may be: to make it takes the engine's time.
const pictureAge = 2 * time.Second

// picture is what /ui shows.
func (p *Proxy) picture(ctx context.Context) (*ui.Input, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return &ui.Input{Status: p.documentOf(s, status.Filter{}), Host: s.Host, Services: s.Services, Suspects: s.Suspects, History: p.engine.History().Find(history.Filter{})}, nil
}

// packets are counted by the backend in use, if it does.
func (p *Proxy) packets() dataplane.Packets {
	if c, ok := dataplane.As[dataplane.PacketCounter](p.engine.Current().Backend); ok {
		return c.Packets()
	}
	return dataplane.Packets{}
}

// relays are the counters of the userspace mode, if it is in use.
func (p *Proxy) relays() (relay.Stats, bool) {
	if c, ok := dataplane.As[relay.Counter](p.engine.Current().Backend); ok {
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

// trusted takes the suspects that a source has changed.
func (p *Proxy) trusted(all []netip.Addr) {
	if p.failover != nil {
		p.failover.trust(all)
	}
}

// unserved reports whether load balancer IPs of a port are not programmed.
func (p *Proxy) unserved(id model.PortID) bool {
	return slices.ContainsFunc(p.engine.Current().Backend.Gaps(id), func(g model.Gap) bool { return g.Unserved })
}

// synced is what follows a sync, on the engine's goroutine.
func (p *Proxy) synced(s engine.Sync) {
	plane := p.engine.Current()
	p.report.synced(s, plane.Backend)
	p.servers.checks.Update(s.Host, s.Applied)
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
// and what the machine says of itself. The engine calls it on its own goroutine.
func (p *Proxy) host(n *model.Node, cidrs []*model.ServiceCIDR) (*model.Host, []model.Problem) {
	c, machine := p.live.Load(), p.machine.now()
	return resolve.Host(c, n, cidrs, machine), resolve.HostProblems(c, n, cidrs, machine)
}

// gcPercent lets garbage grow to a third of what lives before it is collected,
// once everything is programmed. A change makes little garbage; while all is
// new, to collect it that often would take a fifth of the time.
const gcPercent = 30

// releaseStartMemory returns the memory that the start needed to the system, once,
// a few seconds after the first sync: it is several times what the proxy needs
// from then on. It reports whether that came before ctx ended.
func (p *Proxy) releaseStartMemory(ctx context.Context) bool {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for quiet := 0; quiet < 2; {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		if p.Status().Synced {
			quiet++
		}
	}
	p.releaseMemory()
	return true
}

// releaseMemory returns what is not in use to the system, pages of the program included.
func (p *Proxy) releaseMemory() {
	p.system.collect()
	if err := p.system.releaseText(); err != nil {
		p.log.Debug("releasing memory failed", "err", err)
	}
}
