package platform

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch"
)

// source returns what tells the engine of objects, until its context ends: a
// folder of manifests, or else the API server.
func (p *Proxy) source() (run func(context.Context) error, err error) {
	if p.config.Manifests != "" {
		p.events = events.ToLog(p.log)
		folder := &manifests.Source{Dir: p.config.Manifests, NodePorts: p.config.NodePortRange, Log: p.log}
		p.folder = folder
		return func(ctx context.Context) error { return folder.Run(ctx, folderSink{p.Engine}) }, nil
	}
	server, err := watch.Open(p.config, p.log, watch.Hooks{Connected: p.connected})
	if err != nil {
		return nil, err
	}
	writer, err := server.EventWriter()
	if err != nil {
		return nil, err
	}
	p.metrics.Register(watch.ClientMetrics()...)
	p.server, p.events = server, writer.Write
	return func(ctx context.Context) error { return server.Run(ctx, serverSink{p.Engine}) }, nil
}

// stale says which inputs are out of date.
func (p *Proxy) stale() []string {
	switch {
	case p.server != nil:
		return p.server.Stale(time.Now())
	case p.folder != nil:
		return p.folder.Stale(time.Now())
	}
	return nil
}

// ages tells how long ago each kind of input was last known to be up to date.
func (p *Proxy) ages() map[string]time.Duration {
	switch {
	case p.folder != nil:
		return map[string]time.Duration{"manifests": p.folder.Age(time.Now())}
	case p.server == nil:
		return nil
	}
	now, ages := time.Now(), map[string]time.Duration{}
	for _, r := range p.server.Resources() {
		ages[r.Name] = r.Age(now)
	}
	return ages
}

// folderSink is the engine as a folder of manifests sees it.
type folderSink struct{ *engine.Engine }

func (s folderSink) Problems(ps []manifests.Problem) {
	all := make([]model.Problem, len(ps))
	for i, p := range ps {
		all[i] = p.Model()
	}
	s.Engine.Problems("manifests", all)
}

// serverSink is the engine as an API server sees it.
type serverSink struct{ *engine.Engine }

func (s serverSink) Problems(ps []model.Problem) { s.Engine.Problems("API server", ps) }
