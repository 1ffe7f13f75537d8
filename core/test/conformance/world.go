// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"strings"
	"testing/fstest"
	"time"

	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
)

// World returns the desired state after a step. The steps of a scenario must be given
// in their order, each once: like a running proxy, a world remembers the slot order
// of pools and the last good version of objects whose manifest has become invalid.
type World func(Step) (*model.Host, []*model.Port, error)

// NewWorld returns the world of a scenario: manifests, tracker and policy as in
// the product, without any data plane.
func NewWorld(s *Scenario) World {
	w := &world{scenario: s, tracker: track.New(), now: time.Unix(1_700_000_000, 0)}
	w.tracker.SetClock(func() time.Time { return w.now })
	return w.advance
}

type world struct {
	scenario *Scenario
	tracker  *track.Tracker
	node     *model.Node // the last one, also after its removal
	last     model.Objects
	now      time.Time
}

func (w *world) advance(step Step) (*model.Host, []*model.Port, error) {
	w.now = w.now.Add(step.After)
	fsys := fstest.MapFS{}
	for name, data := range step.Files {
		fsys[name] = &fstest.MapFile{Data: data}
	}
	r, err := manifests.ReadFS(context.Background(), fsys)
	if err != nil {
		return nil, nil, err
	}
	now := keepUnreadable(w.last, r)
	for _, node := range now.Nodes {
		if node.Name == NodeName {
			w.node = node
		}
	}
	w.tracker.SetHost(resolve.Host(&w.scenario.Host, w.node, now.ServiceCIDRs, w.scenario.Machine))
	Feed(w.tracker, &w.last, &now)
	if step.Suspects != nil {
		w.tracker.SetSuspects(w.suspects(step))
	}
	w.tracker.Flush()
	w.last = now
	return w.tracker.Host(), Ports(w.tracker), nil
}

func (w *world) suspects(step Step) model.Suspects {
	all := model.Suspects{}
	for a, back := range step.Suspects {
		if all[a] = (time.Time{}); back {
			all[a] = w.now
		}
	}
	return all
}

// keepUnreadable keeps objects of files that now have problems: "could not read" is
// not "absent".
func keepUnreadable(last model.Objects, r manifests.Result) model.Objects {
	bad := map[string]bool{}
	for _, p := range r.Problems {
		bad[p.File] = true
	}
	now := r.Objects
	now.Services = keepOld(now.Services, last.Services, bad, func(s *model.Service) string { return s.Where })
	now.Slices = keepOld(now.Slices, last.Slices, bad, func(s *model.Slice) string { return s.Where })
	now.Nodes = keepOld(now.Nodes, last.Nodes, bad, func(n *model.Node) string { return n.Where })
	now.ServiceCIDRs = keepOld(now.ServiceCIDRs, last.ServiceCIDRs, bad, func(c *model.ServiceCIDR) string { return c.Where })
	now.Routes = keepOld(now.Routes, last.Routes, bad, func(r *model.Route) string { return r.Where })
	now.Grants = keepOld(now.Grants, last.Grants, bad, func(g *model.Grant) string { return g.Where })
	return now
}

func keepOld[T model.Object](now, last []T, bad map[string]bool, where func(T) string) []T {
	for _, old := range missing(last, now) {
		at := where(old)
		if i := strings.LastIndexByte(at, ':'); i >= 0 && bad[at[:i]] {
			now = append(now, old)
		}
	}
	return now
}

// missing returns what is in a and has no equal key in b.
func missing[T model.Object](a, b []T) (gone []T) {
	has := map[model.Key]bool{}
	for _, x := range b {
		has[x.Key()] = true
	}
	for _, x := range a {
		if !has[x.Key()] {
			gone = append(gone, x)
		}
	}
	return gone
}

// Feed passes the difference between two sets of objects to a tracker.
func Feed(t *track.Tracker, old, now *model.Objects) {
	was, is := map[model.Key]model.Object{}, map[model.Key]model.Object{}
	for o := range old.All() {
		was[o.Key()] = o
	}
	for o := range now.All() {
		is[o.Key()] = o
	}
	for o := range old.All() {
		if is[o.Key()] == nil {
			t.Delete(o)
		}
	}
	for o := range now.All() {
		if was[o.Key()] != o {
			t.Set(o)
		}
	}
}

// Ports returns everything a tracker has resolved.
func Ports(t *track.Tracker) (all []*model.Port) {
	for _, s := range t.Services() {
		all = append(all, s.Ports...)
	}
	return all
}
