package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// Snapshot is everything the engine knows at one moment. It is immutable, and
// made when somebody asks for it: a change never pays for it.
type Snapshot struct {
	Status   Status
	Host     *model.Host
	Services []track.Service // by name
	Problems []model.Problem // of the sources
	Backend  dataplane.Health
	Tracker  track.Stats
}

// Snapshot asks the engine for one. It waits for a running sync, and fails only
// when ctx or the engine ends first.
func (e *Engine) Snapshot(ctx context.Context) (*Snapshot, error) {
	return ask(ctx, e, func(e *Engine) *Snapshot {
		s := &Snapshot{
			Status:   *e.status.Load(),
			Host:     e.tracker.Host(),
			Services: e.tracker.Services(),
			Backend:  e.Backend.Health(),
			Tracker:  e.tracker.Stats(),
		}
		for _, ps := range e.problems {
			s.Problems = append(s.Problems, ps...)
		}
		slices.SortFunc(s.Problems, func(a, b model.Problem) int { return cmp.Compare(a.String(), b.String()) })
		return s
	})
}
