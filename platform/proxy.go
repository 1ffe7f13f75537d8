package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/status"
)

// Proxy is a whole proxy, opened and ready to run.
type Proxy struct {
	*engine.Engine
	config  *config.Config                // as at the start
	live    atomic.Pointer[config.Config] // as last changed by Reconfigure
	lock    net.Listener
	place   string    // the network namespace, where systems have several
	flows   flowTable // nil where the mode needs none, or there is none
	cleaner *flows.Cleaner
	metrics *metrics.Metrics
	http    net.Listener // nil when nothing is served
	follow  func(context.Context) error
	log     *slog.Logger
	version string

	mu      sync.Mutex // guards mode and backend
	mode    Choice
	backend dataplane.Backend

	switching sync.Mutex // held by the one switch at a time
	group     sync.WaitGroup
	running   context.Context // Run's own
}

// Open chooses the mode and opens everything that belongs to a place, which is
// the network namespace of the calling thread: its lock, the data plane, the flow
// table and the listening socket. Close it, or Run it.
func Open(ctx context.Context, c *config.Config, version string, log *slog.Logger) (*Proxy, error) {
	p := &Proxy{config: c, metrics: metrics.New(), log: log, version: version}
	p.live.Store(c)
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
		Hooks:      engine.Hooks{Synced: p.synced, Drifted: p.metrics.Drifted, Problem: p.problem},
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
	if p.mode, err = Choose(ctx, p.config, p.log); err != nil {
		return err
	}
	if p.backend, err = p.mode.Open(p.config); err != nil {
		return fmt.Errorf("mode %s: %w", p.mode.Name, err)
	}
	if p.flows, err = openFlows(); err != nil {
		p.flows = nil
		if p.mode.Conntrack {
			p.log.Warn("stale UDP flows will not be removed", "error", err)
		}
	}
	if p.config.HTTPAddress != "" {
		if p.http, err = net.Listen("tcp", p.config.HTTPAddress); err != nil {
			return fmt.Errorf("status address: %w; choose another with --metrics-bind-address, or none with an empty one", err)
		}
	}
	return nil
}

// Run works until ctx ends, and closes everything. What is programmed stays:
// Services go on working while no proxy runs.
func (p *Proxy) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	if p.flows != nil {
		p.cleaner = flows.Start(ctx, p.flows, flows.Hooks{Cleaned: p.cleaned, Dropped: p.dropped})
	}
	p.running = ctx
	errs := make(chan error, 4)
	start := func(what string, run func(context.Context) error) {
		p.group.Go(func() {
			// Whoever ends ends all: half a proxy helps nobody.
			defer cancel()
			if err := run(ctx); err != nil && ctx.Err() == nil {
				errs <- fmt.Errorf("%s: %w", what, err)
			}
		})
	}
	start("engine", p.Engine.Run)
	start("source", p.follow)
	start("control", p.control)
	p.group.Go(func() { p.settle(ctx) })
	if p.http != nil {
		start("http", func(ctx context.Context) error { return health.Serve(ctx, p.http, p.sources()) })
	}
	p.group.Wait()
	cancel()
	close(errs)
	var failed []error
	for err := range errs {
		failed = append(failed, err)
	}
	return errors.Join(append(failed, p.Close())...)
}

// Close releases everything that Open opened. The data plane stays as it is.
func (p *Proxy) Close() error {
	var errs []error
	if p.cleaner != nil {
		p.cleaner.Close()
	}
	if p.http != nil {
		if err := p.http.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if p.flows != nil {
		errs = append(errs, p.flows.Close())
	}
	if p.backend != nil {
		errs = append(errs, p.backend.Close())
	}
	if p.lock != nil { // last: until here the place is ours
		errs = append(errs, p.lock.Close())
	}
	return errors.Join(errs...)
}

// host merges the configuration with this machine's Node. The engine calls it,
// on its own goroutine, whenever it is told of one.
func (p *Proxy) host(n *model.Node) *model.Host {
	c := p.live.Load()
	p.Problems("host", resolve.HostProblems(c, n))
	return resolve.Host(c, n)
}

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
	debug.FreeOSMemory()
}

func (p *Proxy) synced(s engine.Sync) {
	p.metrics.Synced(s.Waiting, s.Took, s.Work.Ops, s.Work.Failed, s.Err, time.Now())
	if p.cleaner != nil && p.current().Conntrack {
		p.cleaner.Update(s.Host, s.Settled)
	}
}

func (p *Proxy) problem(problem model.Problem) { p.metrics.Problem(problem.Why.String()) }

func (p *Proxy) dropped(fronts int) {
	p.log.Warn("too many fronts wait for their stale UDP flows to be removed, some are given up", "fronts", fronts)
}

func (p *Proxy) cleaned(r flows.Report) {
	p.metrics.FlowsDeleted(r.Deleted)
	if r.Err != nil {
		p.log.Warn("stale UDP flows were not all removed", "error", r.Err, "retry", r.Retry)
		return
	}
	p.log.Debug("stale UDP flows removed", "flows", r.Deleted, "fronts", r.Fronts, "took", r.Took)
}

// Document returns the status document.
func (p *Proxy) Document(ctx context.Context) (status.Document, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return status.Document{}, err
	}
	return status.Of(status.Facts{
		Version: p.version, Node: p.config.NodeName, Mode: string(p.current().Name), Source: p.config.Manifests,
	}, s), nil
}

func (p *Proxy) sources() health.Sources {
	return health.Sources{
		Unhealthy: func() []string { return status.Unhealthy(p.Status()) },
		Status:    func(ctx context.Context) (any, error) { return p.Document(ctx) },
		Metrics:   p.metrics.Handler(),
	}
}
