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

// inputs is what a folder of manifests or an API server says at one moment.
type inputs struct {
	nodes    []*model.Node
	services []*model.Service
	slices   []*model.Slice
	cidrs    []*model.ServiceCIDR
	problems []model.Problem // with what is not among them
	machine  model.Machine   // this one
}

// readInputs reads the source that a configuration names, once, and what this
// machine says of itself.
func readInputs(ctx context.Context, c *config.Config) (in inputs, err error) {
	if c.Manifests == "" {
		in, err = askServer(ctx, c)
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
	in := inputs{nodes: found.Nodes, services: found.Services, slices: found.Slices, cidrs: found.ServiceCIDRs}
	for _, p := range found.Problems {
		in.problems = append(in.problems, p.Model())
	}
	return in, nil
}

// askServer follows the API server until it has told everything, this machine's
// Node included.
func askServer(ctx context.Context, c *config.Config) (inputs, error) {
	following, stop := context.WithCancel(ctx)
	defer stop()
	g := &gathering{
		services: map[model.ServiceName]*model.Service{}, slices: map[model.SliceName]*model.Slice{},
		cidrs: map[string]*model.ServiceCIDR{}, whole: stop,
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
		return inputs{}, fmt.Errorf("%s has not told everything: %s: %w", c.Source(), g.missing(source, c.NodeName), err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return inputs{
		nodes: []*model.Node{g.node}, services: slices.Collect(maps.Values(g.services)),
		slices: slices.Collect(maps.Values(g.slices)), cidrs: slices.Collect(maps.Values(g.cidrs)), problems: g.problems,
		machine: model.Machine{APIServers: g.servers},
	}, nil
}

// missing says what has not been told, and why, as far as that is known.
func (g *gathering) missing(source *watch.Source, node string) string {
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
		why = append(why, "no answer came in time")
	}
	return strings.Join(why, "; ")
}

// gathering keeps what it is told (watch.Sink) and says when that is all.
type gathering struct {
	mu       sync.Mutex
	services map[model.ServiceName]*model.Service
	slices   map[model.SliceName]*model.Slice
	cidrs    map[string]*model.ServiceCIDR
	node     *model.Node
	servers  []netip.AddrPort
	problems []model.Problem
	synced   bool
	whole    func()
}

// change makes a change, and looks whether that was all.
func (g *gathering) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	if g.synced && g.node != nil {
		g.whole()
	}
}

// SetService implements watch.Sink.
func (g *gathering) SetService(s *model.Service) { g.change(func() { g.services[s.Name] = s }) }

// DeleteService implements watch.Sink.
func (g *gathering) DeleteService(n model.ServiceName) { g.change(func() { delete(g.services, n) }) }

// SetSlice implements watch.Sink.
func (g *gathering) SetSlice(s *model.Slice) { g.change(func() { g.slices[s.Name] = s }) }

// DeleteSlice implements watch.Sink.
func (g *gathering) DeleteSlice(n model.SliceName) { g.change(func() { delete(g.slices, n) }) }

// SetNode implements watch.Sink.
func (g *gathering) SetNode(n *model.Node) { g.change(func() { g.node = n }) }

// SetServiceCIDR implements watch.Sink.
func (g *gathering) SetServiceCIDR(c *model.ServiceCIDR) { g.change(func() { g.cidrs[c.Name] = c }) }

// DeleteServiceCIDR implements watch.Sink.
func (g *gathering) DeleteServiceCIDR(name string) { g.change(func() { delete(g.cidrs, name) }) }

// Problems implements watch.Sink.
func (g *gathering) Problems(ps []model.Problem) { g.change(func() { g.problems = ps }) }

// Synced implements watch.Sink.
func (g *gathering) Synced(bool) { g.change(func() { g.synced = true }) }
