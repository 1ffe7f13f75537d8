// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/tandem-proxy/tandem/core/model"
)

// record is a Sink that remembers the state it was brought to, and the calls.
type record struct {
	mu       sync.Mutex
	services map[model.ServiceName]*model.Service
	slices   map[model.SliceName]*model.Slice
	nodes    map[string]*model.Node
	cidrs    map[string]*model.ServiceCIDR
	routes   map[model.RouteName]*model.Route
	grants   map[model.GrantName]*model.Grant
	problems []Problem
	calls    []string
	synced   []string
	unread   []model.Unread
}

func newRecord() *record {
	return &record{
		services: map[model.ServiceName]*model.Service{},
		slices:   map[model.SliceName]*model.Slice{},
		nodes:    map[string]*model.Node{},
		cidrs:    map[string]*model.ServiceCIDR{},
		routes:   map[model.RouteName]*model.Route{},
		grants:   map[model.GrantName]*model.Grant{},
	}
}

func (r *record) note(format string, args ...any) {
	if len(r.calls) < 1000 {
		r.calls = append(r.calls, fmt.Sprintf(format, args...))
	}
}

func (r *record) SetService(s *model.Service) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.services[s.Name] = s
	r.note("set service %s", s.Name)
}

func (r *record) DeleteService(n model.ServiceName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.services, n)
	r.note("delete service %s", n)
}

func (r *record) SetSlice(s *model.Slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slices[s.Name] = s
	r.note("set slice %s", s.Name)
}

func (r *record) DeleteSlice(n model.SliceName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.slices, n)
	r.note("delete slice %s", n)
}

func (r *record) SetNode(n *model.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[n.Name] = n
	r.note("set node %s", n.Name)
}

func (r *record) DeleteNode(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, name)
	r.note("delete node %s", name)
}

func (r *record) SetServiceCIDR(c *model.ServiceCIDR) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cidrs[c.Name] = c
	r.note("set cidr %s %s", c.Name, c.CIDRs)
}

func (r *record) DeleteServiceCIDR(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cidrs, name)
	r.note("delete cidr %s", name)
}

func (r *record) SetRoute(o *model.Route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routes[o.Name] = o
	r.note("set %s", o.Name)
}

func (r *record) DeleteRoute(n model.RouteName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.routes, n)
	r.note("delete %s", n)
}

func (r *record) SetGrant(o *model.Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants[o.Name] = o
	r.note("set grant %s", o.Name)
}

func (r *record) DeleteGrant(n model.GrantName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.grants, n)
	r.note("delete grant %s", n)
}

func (r *record) Problems(ps []Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = ps
}

func (r *record) Unread(u model.Unread) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread = append(r.unread, u)
}

func (r *record) Synced(whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = append(r.synced, strconv.FormatBool(whole))
}

// take returns the calls since the last take, sorted.
func (r *record) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	slices.Sort(calls)
	return calls
}

// names returns the names of the Services that are there.
func (r *record) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, n := range slices.SortedFunc(maps.Keys(r.services), model.ServiceName.Compare) {
		names = append(names, n.Name)
	}
	return names
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// peek returns the calls since the last take, and leaves them.
func (r *record) peek() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// port returns the first port of a Service of the default namespace, or 0.
func (r *record) port(name string) uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.services[model.ServiceName{Namespace: "default", Name: name}]; s != nil {
		return s.Ports[0].Port
	}
	return 0
}
