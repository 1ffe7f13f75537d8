// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/ui"
)

func (p *Proxy) pages() health.Sources {
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
		UI:      ui.Handler(health.Shared(p.uiInput, uiAge)),
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
func (p *Proxy) state(ctx context.Context) (func(status.Filter) any, error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return func(only status.Filter) any {
		d, list := status.List(p.facts(only), s)
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
	return &ui.Input{Status: status.Of(p.facts(status.Filter{}), s), Host: s.Host, Services: s.Services, Suspects: s.Suspects, History: p.engine.History().Find(history.Filter{})}, nil
}
