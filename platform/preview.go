// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// Edit is what tandem plan --against-running asks about: Services, EndpointSlices,
// routes and grants that take the place of those of the same names.
type Edit struct {
	Services []*model.Service `json:"services"`
	Slices   []*model.Slice   `json:"slices"`
	Routes   []*model.Route   `json:"routes,omitempty"`
	Grants   []*model.Grant   `json:"grants,omitempty"`
	Prune    bool             `json:"prune,omitempty"` // and all others are deleted
}

// Preview is the query of tandem plan --against-running.
func Preview() Query[Edit, status.Preview] {
	return Query[Edit, status.Preview]{Name: "preview", Reads: true, answer: preview}
}

func preview(ctx context.Context, p *Proxy, edit Edit) (status.Preview, error) {
	s, err := p.snapshotFor(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return status.Preview{}, err
	}
	deltas, problems := edit.deltas(s, time.Now())
	out := status.PreviewOf(p.engine.Current().Preview(deltas), deltas, problems)
	out.Node, out.Mode = s.Host.Name, p.mode()
	switch {
	case len(deltas) == 0: // of none
	case p.tracked == nil:
		out.Unknown = "this system does not list tracked connections"
	case !p.engine.Current().Mode.Conntrack:
		out.Unknown = "mode " + p.mode() + " does not track connections in the kernel"
	default:
		count := status.CountFlows(s.Host, deltas)
		if err := p.network.Do(func() error { return p.tracked.Each(ctx, count.See) }); err != nil {
			out.Unknown = err.Error()
		}
		count.Add(&out)
	}
	return out, nil
}

// deltas resolves what the edit touches, and returns which ports differ from the
// running ones and the problems of the edited Services.
func (e Edit) deltas(s *engine.Snapshot, now time.Time) (deltas []model.Delta, problems []model.Problem) {
	t := track.Resume(s.Host, s.Services, &model.Objects{Nodes: s.Others, Slices: s.Orphans, Routes: s.Routes, Grants: s.Grants}, s.Suspects, now)
	t.Set(&model.Objects{Services: e.Services, Slices: e.Slices, Routes: e.Routes, Grants: e.Grants})
	if e.Prune {
		e.prune(t, s)
	}
	deltas = t.Flush()
	slices.SortFunc(deltas, func(a, b model.Delta) int { return a.ID().Compare(b.ID()) })
	for _, svc := range e.Services {
		problems = append(problems, t.Service(svc.Name).Problems...)
	}
	return deltas, problems
}

// prune deletes from a tracker what a snapshot has and the edit has not.
func (e Edit) prune(t *track.Tracker, s *engine.Snapshot) {
	keep := map[any]bool{}
	for _, svc := range e.Services {
		keep[svc.Name] = true
	}
	for _, slice := range e.Slices {
		keep[slice.Name] = true
	}
	for _, r := range e.Routes {
		keep[r.Name] = true
	}
	for _, g := range e.Grants {
		keep[g.Name] = true
	}
	for _, svc := range s.Services {
		if !keep[svc.Object.Name] {
			t.DeleteService(svc.Object.Name)
		}
		for _, slice := range svc.Slices {
			if !keep[slice.Name] {
				t.DeleteSlice(slice.Name)
			}
		}
	}
	for _, slice := range s.Orphans {
		if !keep[slice.Name] {
			t.DeleteSlice(slice.Name)
		}
	}
	for _, r := range s.Routes {
		if !keep[r.Name] {
			t.DeleteRoute(r.Name)
		}
	}
	for _, g := range s.Grants {
		if !keep[g.Name] {
			t.DeleteGrant(g.Name)
		}
	}
}
