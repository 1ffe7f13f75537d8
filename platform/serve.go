package platform

import (
	"context"
	"errors"
	"net"
	"slices"

	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/status"
)

// servers are what a proxy answers with over HTTP. Each may be missing.
type servers struct {
	site   site
	probes *health.Server // for load balancers and kubelets
	pages  *health.Server // for Prometheus and people
	checks *health.Checks // for load balancers, about single Services
}

// site is where to listen: the machine, or one network namespace of it.
type site interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	Close() error
}

// openServers binds the addresses of the configuration. Everything listens in
// the network namespace of the calling thread, also what is opened later.
func (p *Proxy) openServers(ctx context.Context) (err error) {
	if p.servers.site, err = openSite(); err != nil {
		return err
	}
	server := func(name, address string, failed func(error) events.Event) *health.Server {
		return &health.Server{
			Name: name, Address: address, Listen: p.servers.site.Listen, HardFail: p.config.BindHardFail, Log: p.log,
			Failed: func(err error) { p.recorder.Add(failed(err)) },
		}
	}
	if a := p.config.HealthAddress; a != "" {
		p.servers.probes = server("health", a, p.teller.HealthAddress)
		p.servers.probes.Handler = health.Probes(p.health, p.metrics.Probed)
		if err := p.servers.probes.Open(ctx); err != nil {
			return err
		}
	}
	if a := p.config.HTTPAddress; a != "" {
		p.servers.pages = server("metrics", a, p.teller.MetricsAddress)
		p.servers.pages.Handler = health.Pages(p.sources())
		if err := p.servers.pages.Open(ctx); err != nil {
			return err
		}
	}
	p.servers.checks = health.NewChecks(health.ChecksOptions{
		Listen: p.servers.site.Listen, Log: p.log,
		Healthy: func() bool { return p.health().Healthy() },
		Unserved: func(id model.PortID) bool {
			return slices.ContainsFunc(p.counter().Gaps(id), func(g model.Gap) bool { return g.Unserved })
		},
		Failed: func(svc model.ServiceName, port uint16, err error) { p.recorder.Add(p.teller.Check(svc, port, err)) },
	})
	return nil
}

// run starts what there is.
func (s *servers) run(start func(what string, run func(context.Context) error)) {
	if s.probes != nil {
		start("health", s.probes.Run)
	}
	if s.pages != nil {
		start("metrics", s.pages.Run)
	}
	start("health checks of Services", s.checks.Run)
}

func (s *servers) close() error {
	var errs []error
	for _, server := range []*health.Server{s.probes, s.pages} {
		if server != nil {
			errs = append(errs, server.Close())
		}
	}
	if s.site != nil {
		errs = append(errs, s.site.Close())
	}
	return errors.Join(errs...)
}

// health judges the proxy.
func (p *Proxy) health() status.Health {
	return status.HealthOf(p.Status(), 2*p.live.Load().SyncPeriod, p.stale())
}

func (p *Proxy) sources() health.Sources {
	return health.Sources{
		Health:  p.health,
		Status:  func(ctx context.Context) (any, error) { return p.Document(ctx) },
		Metrics: p.metrics.Handler(),
		SLIs:    p.metrics.SLIs(),
		Checked: p.metrics.Checked,
		Mode:    func() string { return string(p.current().Name) },
		Config:  func() any { return p.live.Load().Tree() },
		Profile: p.config.Profiling,
	}
}
