// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/platform"
)

// inputs are the objects of a folder of manifests or an API server at one moment.
type inputs struct {
	model.Objects
	problems []model.Problem // of inputs that are not among them
	machine  model.Machine   // this one
}

// readInputs reads the source that a configuration names, once, and the addresses of
// this machine.
func readInputs(ctx context.Context, c *config.Config) (in inputs, err error) {
	if c.Manifests == "" {
		in, err = listServer(ctx, c)
	} else {
		in, err = readFolder(ctx, c)
	}
	if err != nil {
		return in, err
	}
	in.machine.Addresses, err = platform.LocalAddresses()
	return in, err
}

func readFolder(ctx context.Context, c *config.Config) (inputs, error) {
	found, err := manifests.Read(ctx, c.Manifests, c.NodePortRange)
	if err != nil {
		return inputs{}, err
	}
	in := inputs{Objects: found.Objects}
	for _, p := range found.Problems {
		in.problems = append(in.problems, p.Model())
	}
	return in, nil
}

// listServer watches the API server until everything was delivered, this machine's
// Node included.
func listServer(ctx context.Context, c *config.Config) (inputs, error) {
	following, stop := context.WithCancel(ctx)
	defer stop()
	g := &collector{
		services: map[model.ServiceName]*model.Service{}, slices: map[model.SliceName]*model.Slice{},
		cidrs: map[string]*model.ServiceCIDR{}, routes: map[model.RouteName]*model.Route{}, grants: map[model.GrantName]*model.Grant{}, complete: stop,
	}
	hooks := watch.Hooks{Connected: func(all []netip.AddrPort) { g.change(func() { g.servers = all }) }}
	source, err := watch.Open(c, slog.New(slog.DiscardHandler), hooks)
	if err != nil {
		return inputs{}, err
	}
	if err := source.Run(following, g); err != nil {
		return inputs{}, err
	}
	if err := ctx.Err(); err != nil {
		return inputs{}, fmt.Errorf("reading %s failed: %s: %w", c.Source(), g.missing(source, c.NodeName), err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return inputs{
		Objects: model.Objects{
			Nodes: []*model.Node{g.node}, Services: slices.Collect(maps.Values(g.services)),
			Slices: slices.Collect(maps.Values(g.slices)), ServiceCIDRs: slices.Collect(maps.Values(g.cidrs)),
			Routes: slices.Collect(maps.Values(g.routes)), Grants: slices.Collect(maps.Values(g.grants)),
		},
		problems: g.problems, machine: model.Machine{APIServers: g.servers},
	}, nil
}

// missing describes the inputs that were not delivered, and why, as far as known.
func (g *collector) missing(source *watch.Source, node string) string {
	var why []string
	for _, r := range source.Resources() {
		if r.Err != "" {
			why = append(why, r.Name+": "+r.Err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.problems {
		why = append(why, p.String())
	}
	if len(why) == 0 && g.node == nil {
		why = append(why, "there is no Node "+node)
	}
	if len(why) == 0 {
		why = append(why, "timeout")
	}
	return strings.Join(why, "; ")
}

// collector keeps the delivered objects (watch.Sink) and calls complete after the last one.
type collector struct {
	mu       sync.Mutex
	services map[model.ServiceName]*model.Service
	slices   map[model.SliceName]*model.Slice
	cidrs    map[string]*model.ServiceCIDR
	routes   map[model.RouteName]*model.Route
	grants   map[model.GrantName]*model.Grant
	node     *model.Node
	servers  []netip.AddrPort
	problems []model.Problem
	synced   bool
	complete func()
}

// change makes a change, and checks whether that was all.
func (g *collector) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	if g.synced && g.node != nil {
		g.complete()
	}
}

var _ watch.Sink = (*collector)(nil)

func (g *collector) SetService(s *model.Service) { g.change(func() { g.services[s.Name] = s }) }

func (g *collector) DeleteService(n model.ServiceName) { g.change(func() { delete(g.services, n) }) }

func (g *collector) SetSlice(s *model.Slice) { g.change(func() { g.slices[s.Name] = s }) }

func (g *collector) DeleteSlice(n model.SliceName) { g.change(func() { delete(g.slices, n) }) }

func (g *collector) SetNode(n *model.Node) { g.change(func() { g.node = n }) }

func (g *collector) DeleteNode(string) {}

func (g *collector) SetServiceCIDR(c *model.ServiceCIDR) { g.change(func() { g.cidrs[c.Name] = c }) }

func (g *collector) DeleteServiceCIDR(name string) { g.change(func() { delete(g.cidrs, name) }) }

func (g *collector) SetRoute(r *model.Route) { g.change(func() { g.routes[r.Name] = r }) }

func (g *collector) DeleteRoute(n model.RouteName) { g.change(func() { delete(g.routes, n) }) }

func (g *collector) SetGrant(o *model.Grant) { g.change(func() { g.grants[o.Name] = o }) }

func (g *collector) DeleteGrant(n model.GrantName) { g.change(func() { delete(g.grants, n) }) }

func (g *collector) Problems(ps []model.Problem) { g.change(func() { g.problems = ps }) }

func (g *collector) Unread(model.Unread) {}

func (g *collector) Synced(bool) { g.change(func() { g.synced = true }) }
