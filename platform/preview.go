// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"maps"
	"slices"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
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
	s, err := p.snapshotFor(ctx)
	if err != nil {
		return status.Preview{}, err
	}
	deltas, problems := edit.deltas(s)
	out := status.PreviewOf(p.engine.Current().Preview(deltas), deltas, problems)
	out.Node, out.Mode = s.Host.Name, p.mode()
	each := p.system.eachFlow
	switch {
	case len(deltas) == 0: // of none
	case each == nil:
		out.Unknown = "this system does not list tracked connections"
	case !p.engine.Current().Mode.Conntrack:
		out.Unknown = "mode " + p.mode() + " does not track connections in the kernel"
	default:
		count := status.CountFlows(s.Host, deltas)
		if err := p.network.Do(func() error { return each(ctx, count.See) }); err != nil {
			out.Unknown = err.Error()
		}
		count.Add(&out)
	}
	return out, nil
}

// deltas resolves everything with the edit, and returns which ports differ from the
// running ones and what is wrong with the edited Services.
func (e Edit) deltas(s *engine.Snapshot) (deltas []model.Delta, problems []model.Problem) {
	services, from := map[model.ServiceName]*model.Service{}, map[model.SliceName]*model.Slice{}
	old := map[model.PortID]*model.Port{}
	for _, svc := range s.Services {
		for _, p := range svc.Ports {
			old[p.ID] = p
		}
		if e.Prune {
			continue
		}
		services[svc.Object.Name] = svc.Object
		for _, slice := range svc.Slices {
			from[slice.Name] = slice
		}
	}
	edited := map[model.ServiceName]bool{}
	for _, svc := range e.Services {
		services[svc.Name], edited[svc.Name] = svc, true
	}
	for _, slice := range e.Slices {
		from[slice.Name] = slice
	}
	t := track.New()
	t.SetHost(s.Host)
	t.SetSuspects(s.Suspects)
	if !e.Prune {
		t.Set(&model.Objects{Routes: s.Routes, Grants: s.Grants})
	}
	t.Set(&model.Objects{
		Services: slices.Collect(maps.Values(services)), Slices: slices.Collect(maps.Values(from)), Routes: e.Routes, Grants: e.Grants,
	})
	t.Flush()
	for _, svc := range t.Services() {
		for _, p := range svc.Ports {
			before := old[p.ID]
			delete(old, p.ID)
			if before != nil {
				resolve.Reslot(p, before, nil)
			}
			if !p.Equal(before) {
				deltas = append(deltas, model.Delta{Old: before, New: p})
			}
		}
		if edited[svc.Object.Name] {
			problems = append(problems, svc.Problems...)
		}
	}
	for _, p := range slices.SortedFunc(maps.Values(old), func(a, b *model.Port) int { return a.ID.Compare(b.ID) }) {
		deltas = append(deltas, model.Delta{Old: p})
	}
	return deltas, problems
}
