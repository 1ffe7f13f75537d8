// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/tracing"
	"github.com/tandem-proxy/tandem/core/watch"
)

// Open chooses the mode and opens everything that belongs to the network namespace
// of the calling thread: its lock, the data plane, the flow table and the listening
// sockets. Close it, or Run it.
func Open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	return thisSystem().open(ctx, c, version, log)
}

func (s system) open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	s.limitMemory(log)
	p := &Proxy{system: s, version: version, log: log, config: c, base: c, kernel: make(turn, 1), answers: make(turn, 1)}
	p.memory = newReleaser(p.releaseText, s.collect)
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
	if list := p.system.listFlows; list != nil {
		p.tracked = list()
	}
	a, err := p.system.addresses()
	p.machine = openMachine(a, err, p.log)
	if p.machine.facts.Salt, err = p.system.salt(); err != nil {
		p.log.Warn("mode nftables forgets at the next restart which IPv4 clients have session affinity", "err", err)
	}
	if open := p.system.listeners; open != nil {
		if p.listeners, err = open(); err != nil {
			p.listeners = nil
			p.log.Warn("processes that listen on this node are unknown; external IPs that are its own addresses are not served", "err", err)
		}
	}
	if open := p.system.writers; open != nil {
		if p.writers, err = open(); err != nil {
			p.writers = nil
			p.log.Debug("other writers are not recorded", "err", err)
		} else {
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
	return err
}

// logFlowsError warns if a mode needs the tracked flows that could not be opened, once.
func (p *Proxy) logFlowsError(mode dataplane.Mode) {
	if p.flowsErr != nil && mode.Conntrack {
		p.log.Warn("opening conntrack failed; no UDP cleanup, no failover", "mode", mode.Name, "err", p.flowsErr)
		p.flowsErr = nil
	}
}

// switched reports that another mode is in use now.
func (p *Proxy) switched(from, to config.Mode) {
	p.report.switched(from, to)
	p.logFlowsError(p.engine.Current().Mode)
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
	p.flows[1] = handshakes{p.flows[1], p.failover}
	flows, err := p.system.observe()
	if p.failover.unavailable = err; err == nil {
		p.failover.flows = flows
	}
	return err
}

// openEngine chooses the mode and opens its backend, which is the engine's from
// then on.
func (p *Proxy) openEngine(ctx context.Context) (err error) {
	if p.choice, err = p.system.choose(ctx, p.config, p.log); err != nil {
		return err
	}
	backend, err := p.choice.OpenWhenReady(ctx, p.config, p.log)
	if err != nil {
		return fmt.Errorf("mode %s: %w", p.choice.Name, err)
	}
	options := engine.Options{
		Host:       p.host,
		NodeName:   p.config.NodeName,
		Mode:       p.choice.Mode,
		Backend:    backend,
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
	p.failover = newFailover(p.config.Failover, p.engine, p.network, p.machine.local, p.report, p.log)
	p.switcher = &switcher{
		engine: p.engine, network: p.network, log: p.log, switched: p.switched, running: p.running, group: &p.group,
		modes: p.system.all(), privileged: p.system.privileged, clean: make(chan struct{}), turn: make(turn, 1), retiring: map[config.Mode]retirement{},
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
		return serveControl(ctx, p.lock, p.log, p.memory.around(controlHandler(p.switchTo, p.snapshotRoute(), p.queryRoute())))
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
// forever; and no other one is begun. So none is read over what Close closes.
func (p *Proxy) stopReading() {
	ctx, cancel := context.WithTimeout(context.Background(), readGrace)
	defer cancel()
	if p.kernel.take(ctx) != nil {
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
	errs = append(errs, p.servers.close())
	for _, table := range p.flows {
		if table != nil {
			errs = append(errs, table.Close())
		}
	}
	if p.tracked != nil {
		errs = append(errs, p.tracked.Close())
	}
	if p.writers != nil {
		errs = append(errs, p.writers.Close())
	}
	errs = append(errs, p.failover.close())
	if p.engine != nil {
		errs = append(errs, p.engine.Close())
	}
	if p.listeners != nil {
		errs = append(errs, p.listeners.Close())
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

// Ready waits until everything that the source delivered is programmed for the
// first time, and reports whether that came before ctx ended.
func (p *Proxy) Ready(ctx context.Context) bool {
	select {
	case <-p.engine.Programmed():
	case <-ctx.Done():
	}
	return p.Status().Synced
}

// Switch changes the mode while Services are in use: the new one is programmed
// in parallel to the old one, becomes the one in use, and then the old one is removed. When
// ctx ends before that, or the new mode cannot program everything, everything stays
// as it was.
func (p *Proxy) Switch(ctx context.Context, to config.Mode) (Switched, error) {
	return p.switchTo(ctx, to, func(string) {})
}

// switchTo is Switch with its phases.
func (p *Proxy) switchTo(ctx context.Context, to config.Mode, phase func(string)) (Switched, error) {
	return p.switcher.switchTo(ctx, to, p.live.Load(), phase)
}
