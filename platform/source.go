// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/watch"
)

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

// run delivers objects to the engine until ctx ends.
func (s source) run(ctx context.Context, e *engine.Engine) error {
	if s.folder != nil {
		return s.folder.Run(ctx, folderSink{e})
	}
	return s.server.Run(ctx, serverSink{e})
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

// ages returns how long ago each kind of input was last known to be up to date.
func (s source) ages() map[string]time.Duration {
	switch {
	case s.folder != nil:
		return map[string]time.Duration{"manifests": s.folder.Age(time.Now())}
	case s.server == nil:
		return nil
	}
	now, ages := time.Now(), map[string]time.Duration{}
	for _, r := range s.server.Resources() {
		ages[r.Name] = r.Age(now)
	}
	return ages
}

// inputs returns how up to date each kind of input is.
func (s source) inputs() (all []status.Input) {
	now := time.Now()
	switch {
	case s.folder != nil:
		return []status.Input{{Name: "manifests", Age: s.folder.Age(now).Seconds()}}
	case s.server == nil:
		return nil
	}
	for _, r := range s.server.Resources() {
		all = append(all, status.Input{Name: r.Name, Age: r.Age(now).Seconds(), Version: r.Version, Objects: r.Objects, Err: r.Err})
	}
	return all
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
