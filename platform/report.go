// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"log/slog"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
)

// reporter turns what the parts of a proxy do into metrics and Events. It never
// blocks.
type reporter struct {
	metrics  *metrics.Metrics
	teller   events.Composer
	recorder *events.Recorder
	log      *slog.Logger
}

func newReporter(node string, sources metrics.Sources, log *slog.Logger) *reporter {
	m := metrics.New(sources)
	return &reporter{metrics: m, teller: events.Composer{Node: node}, recorder: events.NewRecorder(m.EventWritten, log), log: log}
}

// synced reports a sync.
func (r *reporter) synced(s engine.Sync) {
	r.metrics.Synced(s)
	for _, change := range s.StateChanges {
		if e, ok := r.teller.ServiceState(change); ok {
			r.recorder.Add(e)
		}
	}
}

func (r *reporter) drifted(_ int, found []engine.Drift) {
	var by engine.Candidates
	if len(found) > 0 {
		by = found[0].By
	}
	r.recorder.Add(r.teller.Drifted(by))
}

func (r *reporter) problem(problem model.Problem) {
	r.metrics.Problem(problem)
	if e, ok := r.teller.Problem(problem); ok {
		r.recorder.Add(e)
	}
}

// silent reports endpoints that have stopped answering. The engine reports the problem.
func (r *reporter) silent(p model.Problem, observed bool) {
	r.recorder.Add(r.teller.Silent(p, observed))
}

// started reports the start of a proxy in the mode that was chosen.
func (r *reporter) started(version string, configured config.Mode, choice Choice) {
	r.recorder.Add(r.teller.Starting(version, string(choice.Name)))
	if first := choice.Trials[0]; first.Err != nil && configured != config.Auto {
		r.recorder.Add(r.teller.Fallback(string(first.Mode), string(choice.Name), first.Err))
	}
}

// switched reports that another mode is in use now.
func (r *reporter) switched(from, to config.Mode) {
	r.metrics.Mode(string(to))
	r.recorder.Add(r.teller.Switched(string(from), string(to)))
}

// flowsDropped reports frontends whose stale flows will not be looked for.
func (r *reporter) flowsDropped(frontends int) {
	r.log.Warn("conntrack cleanup queue full; dropping", "frontends", frontends)
}

// flowsCleaned reports an attempt to delete stale flows.
func (r *reporter) flowsCleaned(done flows.Report) {
	r.metrics.FlowsCleaned(done)
	if done.Err != nil {
		r.log.Warn("conntrack cleanup failed; retrying", "err", done.Err, "retry", done.Retry)
		return
	}
	r.log.Debug("stale UDP flows deleted", "flows", done.Deleted, "frontends", done.Frontends, "took", done.Took)
}
