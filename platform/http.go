// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/model"
)

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

func (s servers) close() error {
	var errs []error
	for _, server := range []*health.Server{s.probes, s.pages} {
		if server != nil {
			errs = append(errs, server.Close())
		}
	}
	return errors.Join(errs...)
}
