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
	problems []model.Problem
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

func (r *record) Set(o model.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch o := o.(type) {
	case *model.Service:
		r.services[o.Name] = o
		r.note("set service %s", o.Name)
	case *model.Slice:
		r.slices[o.Name] = o
		r.note("set slice %s", o.Name)
	case *model.Node:
		r.nodes[o.Name] = o
		r.note("set node %s", o.Name)
	case *model.ServiceCIDR:
		r.cidrs[o.Name] = o
		r.note("set cidr %s %s", o.Name, o.CIDRs)
	case *model.Route:
		r.routes[o.Name] = o
		r.note("set %s", o.Name)
	case *model.Grant:
		r.grants[o.Name] = o
		r.note("set grant %s", o.Name)
	}
}

func (r *record) Delete(o model.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch o := o.(type) {
	case *model.Service:
		delete(r.services, o.Name)
		r.note("delete service %s", o.Name)
	case *model.Slice:
		delete(r.slices, o.Name)
		r.note("delete slice %s", o.Name)
	case *model.Node:
		delete(r.nodes, o.Name)
		r.note("delete node %s", o.Name)
	case *model.ServiceCIDR:
		delete(r.cidrs, o.Name)
		r.note("delete cidr %s", o.Name)
	case *model.Route:
		delete(r.routes, o.Name)
		r.note("delete %s", o.Name)
	case *model.Grant:
		delete(r.grants, o.Name)
		r.note("delete grant %s", o.Name)
	}
}

func (r *record) Problems(ps []model.Problem) {
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
