// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"slices"
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
	now.Services = keepOld(now.Services, last.Services, bad, serviceKey, func(s *model.Service) string { return s.Where })
	now.Slices = keepOld(now.Slices, last.Slices, bad, sliceKey, func(s *model.Slice) string { return s.Where })
	now.Nodes = keepOld(now.Nodes, last.Nodes, bad, func(n *model.Node) string { return n.Name }, func(n *model.Node) string { return n.Where })
	now.ServiceCIDRs = keepOld(now.ServiceCIDRs, last.ServiceCIDRs, bad, func(c *model.ServiceCIDR) string { return c.Name }, func(c *model.ServiceCIDR) string { return c.Where })
	now.Routes = keepOld(now.Routes, last.Routes, bad, routeKey, func(r *model.Route) string { return r.Where })
	now.Grants = keepOld(now.Grants, last.Grants, bad, grantKey, func(g *model.Grant) string { return g.Where })
	return now
}

func keepOld[T any, K comparable](now, last []T, bad map[string]bool, key func(T) K, where func(T) string) []T {
	for _, old := range missing(last, now, key) {
		at := where(old)
		if i := strings.LastIndexByte(at, ':'); i >= 0 && bad[at[:i]] {
			now = append(now, old)
		}
	}
	return now
}

// missing returns what is in a and has no equal key in b.
func missing[T any, K comparable](a, b []T, key func(T) K) (gone []T) {
	has := map[K]bool{}
	for _, x := range b {
		has[key(x)] = true
	}
	for _, x := range a {
		if !has[key(x)] {
			gone = append(gone, x)
		}
	}
	return gone
}

func serviceKey(s *model.Service) model.ServiceName { return s.Name }
func sliceKey(s *model.Slice) model.SliceName       { return s.Name }
func routeKey(r *model.Route) model.RouteName       { return r.Name }
func grantKey(g *model.Grant) model.GrantName       { return g.Name }

// Feed passes the difference between two sets of objects to a tracker.
func Feed(t *track.Tracker, old, now *model.Objects) {
	feed(others(old.Nodes), others(now.Nodes), func(n *model.Node) string { return n.Name },
		func(name string) { t.SetOtherNode(name, nil) }, func(n *model.Node) { t.SetOtherNode(n.Name, n.IPs) })
	feed(old.Routes, now.Routes, routeKey, t.DeleteRoute, t.SetRoute)
	feed(old.Grants, now.Grants, grantKey, t.DeleteGrant, t.SetGrant)
	feed(old.Slices, now.Slices, sliceKey, t.DeleteSlice, t.SetSlice)
	feed(old.Services, now.Services, serviceKey, t.DeleteService, t.SetService)
}

// others are all nodes but that of the scenarios.
func others(all []*model.Node) []*model.Node {
	return slices.DeleteFunc(slices.Clone(all), func(n *model.Node) bool { return n.Name == NodeName })
}

func feed[T any, K comparable](old, now []*T, key func(*T) K, remove func(K), set func(*T)) {
	for _, o := range missing(old, now, key) {
		remove(key(o))
	}
	for _, o := range missing(now, old, func(o *T) *T { return o }) {
		set(o)
	}
}

// Ports returns everything a tracker has resolved.
func Ports(t *track.Tracker) (all []*model.Port) {
	for _, s := range t.Services() {
		all = append(all, s.Ports...)
	}
	return all
}
