package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/watch"
)

// Proxy is a whole proxy, opened and ready to run.
type Proxy struct {
	*engine.Engine
	config  *config.Config                // as at the start
	live    atomic.Pointer[config.Config] // as last changed by Reconfigure
	base    *config.Config                // what the parts were opened with; Reconfigure's own
	lock    *Held
	place   string    // the network namespace, where systems have several
	flows   flowTable // nil where the mode needs none, or there is none
	cleaner *flows.Cleaner
	facts   facts
	// addresses of this machine; nil where they cannot be opened. Owned by Open, then by
	// followAddresses.
	addresses addresses
	unread    bool // they could not be read when they were last looked at
	metrics   *metrics.Metrics
	teller    events.Teller
	recorder  *events.Recorder
	servers   servers
	follow    func(context.Context) error // the source
	server    *watch.Source               // nil where that is a folder
	folder    *manifests.Source           // nil where that is the API server
	events    events.Sink
	log       *slog.Logger
	version   string

	mu      sync.Mutex // guards mode and backend
	mode    Choice
	backend dataplane.Backend

	switching turn // had by the one switch at a time; guards retiring
	retiring  map[config.Mode]retirement
	tidied    chan struct{} // closed when nothing is left of earlier runs, or never will be
	group     sync.WaitGroup
	running   context.Context // from Open to the end of Run
	stop      context.CancelFunc
}

// turn is a mutex that can be waited for in vain.
type turn chan struct{}

// take waits for the turn until ctx ends.
func (t turn) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// try takes the turn if that is free.
func (t turn) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turn) give() { <-t }

// Open chooses the mode and opens everything that belongs to a place, which is
// the network namespace of the calling thread: its lock, the data plane, the flow
// table and the listening socket. Close it, or Run it.
func Open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	limitMemory(log)
	p := &Proxy{
		config: c, log: log, version: version,
		switching: make(turn, 1), retiring: map[config.Mode]retirement{}, tidied: make(chan struct{}),
	}
	p.running, p.stop = context.WithCancel(context.WithoutCancel(ctx))
	p.metrics = metrics.New(metrics.Sources{Version: version, Status: func() engine.Status { return p.Status() }, Ages: p.ages, Packets: p.packets, Relays: p.relays})
	p.teller, p.recorder = events.Teller{Node: c.NodeName}, events.NewRecorder(p.metrics.EventWritten, log)
	p.live.Store(c)
	p.base = c
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.Engine = engine.New(engine.Options{
		Host:       p.host,
		NodeName:   c.NodeName,
		Backend:    p.backend,
		AuditEvery: c.AuditPeriod,
		MinGap:     c.MinSyncPeriod,
		Log:        log,
		Hooks:      p.hooks(),
	})
	return p, nil
}

func (p *Proxy) open(ctx context.Context) (err error) {
	if p.follow, err = p.source(); err != nil {
		return err
	}
	if p.lock, err = Lock(); err != nil {
		return err
	}
	if p.place, err = place(); err != nil {
		return err
	}
	p.openFacts(openAddresses())
	if p.mode, err = Choose(ctx, p.config, p.log); err != nil {
		return err
	}
	if p.backend, err = p.mode.OpenWhenReady(ctx, p.config); err != nil {
		return fmt.Errorf("mode %s: %w", p.mode.Name, err)
	}
	if p.flows, err = openFlows(); err != nil {
		p.flows = nil
		if p.mode.Conntrack {
			p.log.Warn("stale UDP flows will not be removed", "error", err)
		}
	}
	p.metrics.Mode(string(p.mode.Name))
	return p.openServers(ctx)
}

// Run works until ctx ends, and closes everything. What is programmed stays:
// Services go on working while no proxy runs.
func (p *Proxy) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, p.stop)()
	ctx = p.running
	if p.flows != nil {
		p.cleaner = flows.Start(ctx, p.flows, flows.Hooks{Cleaned: p.cleaned, Dropped: p.dropped})
	}
	var mu sync.Mutex
	var failed []error
	start := func(what string, run func(context.Context) error) {
		p.group.Go(func() {
			// Whoever ends ends all: half a proxy helps nobody.
			defer p.stop()
			if err := run(ctx); err != nil && ctx.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	start("engine", p.Engine.Run)
	start("source", p.follow)
	start("control", p.control)
	p.group.Go(func() { p.followAddresses(ctx) })
	p.group.Go(func() { p.settle(ctx) })
	p.group.Go(func() { p.tidy(ctx) })
	p.group.Go(func() { p.notify(ctx, serviceManager(p.log)) })
	start("events", func(ctx context.Context) error { return p.recorder.Run(ctx, p.events) })
	p.started()
	p.servers.run(start)
	p.group.Wait()
	return errors.Join(append(failed, p.Close())...)
}

// Close releases everything that Open opened. The data plane stays as it is.
func (p *Proxy) Close() error {
	p.stop()
	var errs []error
	if p.cleaner != nil {
		p.cleaner.Close()
	}
	errs = append(errs, p.servers.close())
	if p.flows != nil {
		errs = append(errs, p.flows.Close())
	}
	if p.backend != nil {
		errs = append(errs, p.backend.Close())
	}
	if p.addresses != nil {
		errs = append(errs, p.addresses.Close())
		p.addresses = nil
	}
	if p.lock != nil { // last: until here the place is ours
		errs = append(errs, p.lock.Close())
	}
	return errors.Join(errs...)
}

// host merges the configuration with this machine's Node, the ranges of cluster IPs
// and the facts. The engine calls it, on its own goroutine, whenever it is told of
// any.
func (p *Proxy) host(n *model.Node, cidrs []*model.ServiceCIDR) *model.Host {
	c, machine := p.live.Load(), p.facts.now()
	p.Problems("host", resolve.HostProblems(c, n, cidrs, machine))
	return resolve.Host(c, n, cidrs, machine)
}

// gcPercent lets garbage grow to a third of what lives before it is collected,
// once everything is programmed. A change makes little garbage; while all is
// new, to collect it that often would take a fifth of the time.
const gcPercent = 30

// settle gives the memory that the start needed back to the system, once, a few
// seconds after the first sync: it is several times what the proxy needs from
// then on.
func (p *Proxy) settle(ctx context.Context) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for quiet := 0; quiet < 2; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if p.Status().Synced {
			quiet++
		}
	}
	debug.SetGCPercent(gcPercent)
	debug.FreeOSMemory()
	if err := trim(); err != nil {
		p.log.Debug("what the start alone needed of the program stays in memory", "error", err)
	}
}

// Document returns the status document.
func (p *Proxy) Document(ctx context.Context) (status.Document, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return status.Document{}, err
	}
	return status.Of(status.Facts{
		Version: p.version, Node: p.config.NodeName, Mode: string(p.current().Name), Source: p.config.Source(), Health: p.health(),
	}, s), nil
}
