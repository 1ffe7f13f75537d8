package platform

import (
	"context"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch"
)

// source returns what tells the engine of objects, until its context ends: a
// folder of manifests, or else the API server.
func (p *Proxy) source() (run func(context.Context) error, err error) {
	if p.config.Manifests != "" {
		folder := manifests.Source{Dir: p.config.Manifests, Log: p.log}
		return func(ctx context.Context) error { return folder.Run(ctx, folderSink{p.Engine}) }, nil
	}
	server, err := watch.Open(p.config, p.log, watch.Hooks{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return server.Run(ctx, serverSink{p.Engine}) }, nil
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
