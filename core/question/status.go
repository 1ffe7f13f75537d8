// SPDX-License-Identifier: Apache-2.0

package question

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Status is the state of a running Tandem. Its JSON form is stable: fields
// are added, not changed.
type Status struct {
	Version string `json:"version"`
	Node    string `json:"node" nodes:"own"`
	Mode    string `json:"mode"`
	// Fallback states why another mode than the configured one is in use.
	Fallback string `json:"fallback,omitempty"`
	// Offload means that flow offload is asked for (--accelerate=flowtable): Problems state why
	// it is not in effect.
	Offload bool      `json:"offload,omitempty"`
	Source  string    `json:"source"`
	At      time.Time `json:"at" nodes:"-"`

	Healthy  bool       `json:"healthy"`
	Reasons  []string   `json:"reasons,omitempty"` // why not, and what is out of date
	SyncedAt *time.Time `json:"syncedAt,omitempty" nodes:"-"`
	Syncs    uint64     `json:"syncs" nodes:"-"`
	Objects  int        `json:"objects" nodes:"-"` // in the data plane
	Writes   uint64     `json:"writes" nodes:"-"`  // objects created, replaced or deleted since the start
	Drift    uint64     `json:"drift" nodes:"-"`   // objects that others had changed, since the start; their repair may still fail

	// Hash is that of all Services: nodes that know the same have the same. Inputs is
	// how up to date that is.
	Hash   string  `json:"desiredHash,omitempty"`
	Inputs []Input `json:"inputs,omitempty"`

	Services []Service `json:"services"`
	Total    int       `json:"total"`              // Services, those included that a filter leaves out
	Problems []Problem `json:"problems,omitempty"` // of no single Service; none with a filter of namespace or name
}

// Select leaves only the Services of a filter, and the problems that belong to these.
func (s *Status) Select(only Filter) {
	s.Total = max(s.Total, len(s.Services)) // older versions do not send it
	s.Services = slices.DeleteFunc(s.Services, func(one Service) bool { return !only.Match(one.Name, one.State) })
	if !only.Wide() {
		s.Problems = nil
	}
}

// Input is one kind of objects that Services are made from.
type Input struct {
	Name    string  `json:"name" nodes:"key"`                    // endpointslices, manifests
	Age     float64 `json:"age" nodes:"-"`                       // seconds since it was last known to be up to date
	Version string  `json:"resourceVersion,omitempty" nodes:"-"` // up to which everything is known
	Objects int     `json:"objects,omitempty"`
	Err     string  `json:"error,omitempty"`
	// Unlisted means that none of it was read yet: Age is since the start then.
	Unlisted bool `json:"neverListed,omitempty"`
}

// Pending is the state of a Service that the next syncs program, since the data
// plane is slow.
const Pending = "Pending"

// Service is one Service.
type Service struct {
	Name      string     `json:"name" nodes:"key"`
	State     string     `json:"state"` // Programmed, Partial, Pending, Failing
	Hash      string     `json:"hash"`  // of what all nodes should know of it alike
	Frontends []Frontend `json:"frontends"`
	Ready     int        `json:"ready"`              // endpoints of its slices, by their conditions
	NotReady  int        `json:"notReady,omitempty"` // the others
	Problems  []Problem  `json:"problems,omitempty"`
}

// count counts the endpoints of slices.
func (out *Service) count(from []*model.Slice) {
	out.Ready, out.NotReady = 0, 0
	for _, slice := range from {
		for i := range slice.Endpoints {
			if slice.Endpoints[i].State.Has(model.Ready) {
				out.Ready++
			} else {
				out.NotReady++
			}
		}
	}
}

// Frontend is one address of a Service.
type Frontend struct {
	Port      string `json:"port" nodes:"key"`
	Kind      string `json:"kind"`
	Address   string `json:"address" nodes:"key"` // IP:port; for node ports *:port
	Proto     string `json:"protocol" nodes:"key"`
	Endpoints int    `json:"endpoints"` // that serve clients from outside
	Why       string `json:"why"`
	Missing   bool   `json:"missing,omitempty"` // the mode does not program it, see Why
	// Sources are the only clients let in (loadBalancerSourceRanges): absent for all,
	// empty for none.
	Sources []string `json:"sources,omitzero"`
}

// Problem is something that was rejected or skipped, is unsupported or failed.
type Problem struct {
	Object string `json:"object,omitempty" nodes:"key"`
	Where  string `json:"where,omitempty" nodes:"key"`
	Reason string `json:"reason" nodes:"key"`
	Detail string `json:"detail"`
}

// Facts are what an engine does not know of its node and program.
type Facts struct {
	Version, Node, Mode, Source string
	Fallback                    string
	Offload                     bool // flow offload is asked for
	Health                      Health
	Inputs                      []Input
}

// StatusOf is the status of a document: as it was recorded, of a snapshot.
func StatusOf(d *Document, only Filter) Status {
	if d.Recorded != nil {
		return d.recorded(only)
	}
	return Of(d.Facts, only, d.Snapshot)
}

// recorded is the status that was recorded. What follows from the inputs is counted again: older files do not have it.
func (d *Document) recorded(only Filter) Status {
	s := d.Recorded.Status
	s.Services = slices.Clone(s.Services)
	s.Select(only)
	for i := range s.Services {
		if name, err := model.ParseServiceName(s.Services[i].Name); err == nil {
			if svc, ok := Find(d.Snapshot, name); ok {
				s.Services[i].count(svc.Slices)
			}
		}
	}
	return s
}

// Of renders a snapshot, with the Services of a filter.
func Of(f Facts, only Filter, s *engine.Snapshot) Status {
	d, list := List(f, only, s)
	d.Services = make([]Service, 0, list.Len)
	for one := range list.Each {
		own := *one
		own.Frontends = slices.Clone(one.Frontends)
		d.Services = append(d.Services, own)
	}
	return d
}

// List renders a snapshot without its Services, and those of a filter one at a time.
func List(f Facts, only Filter, s *engine.Snapshot) (d Status, list wire.List[Service]) {
	d = Status{
		Version: f.Version, Node: f.Node, Mode: f.Mode, Fallback: f.Fallback, Offload: f.Offload, Source: f.Source, At: f.Health.At,
		Syncs: s.Status.Syncs, Writes: s.Status.Writes, Objects: s.Backend.Objects, Drift: s.Status.Drift,
		Inputs:  f.Inputs,
		Healthy: f.Health.Healthy(), Reasons: f.Health.Reasons, Services: []Service{},
	}
	faults := faultsOf(s)
	d.Problems = problems(faults.others)
	if err := s.Backend.Left; err != nil {
		d.Problems = append(d.Problems, Problem{Object: "data plane", Reason: model.Failing.String(), Detail: "obsolete objects not removed: " + err.Error()})
	}
	for _, err := range []error{s.Backend.Failures[model.PortID{}], s.Backend.Shared} { // of no single Service
		if err != nil {
			d.Problems = append(d.Problems, Problem{Object: "data plane", Reason: model.Failing.String(), Detail: err.Error()})
		}
	}
	d.Problems = append(d.Problems, ofMode(s.Backend.Gaps)...)
	if !s.Status.SyncedAt.IsZero() {
		d.SyncedAt = &s.Status.SyncedAt
	}
	if !only.Wide() {
		d.Problems = nil
	}
	type listed struct {
		*track.View
		hash hasher
	}
	d.Total = len(s.Services)
	var selected []listed
	if only.All() {
		selected = make([]listed, 0, len(s.Services))
	}
	all := newHasher()
	var one Service // at a time
	describe := func(svc listed) {
		one = Service{Name: svc.Object.Name.String(), Hash: svc.hash.String(), Frontends: one.Frontends[:0]}
		one.describe(svc.View, s, faults.services[svc.Object.Name])
	}
	for _, v := range s.Each() {
		svc := listed{v, hashService(v)}
		all.name(v.Object.Name)
		all.hash(svc.hash)
		if !only.All() {
			if !only.Named(v.Object.Name.String()) {
				continue
			}
			if describe(svc); !only.Match(one.Name, one.State) {
				continue
			}
		}
		selected = append(selected, svc)
	}
	d.Hash = all.String()
	return d, wire.List[Service]{Len: len(selected), Each: func(yield func(*Service) bool) {
		for _, svc := range selected {
			if describe(svc); !yield(&one) {
				return
			}
		}
	}}
}

// faults are the problems that the sources have with Services, and with all else.
type faults struct {
	services map[model.ServiceName][]model.Problem
	others   []model.Problem
}

// faultsOf sorts the problems of the sources. Those of a Service of which nothing is known
// besides are among the others.
func faultsOf(s *engine.Snapshot) (f faults) {
	known := map[model.ServiceName]bool{}
	for _, p := range s.Problems {
		if name, ok := p.Service(); ok {
			known[name] = false
		}
	}
	for _, svc := range s.Services {
		if _, asked := known[svc.Object.Name]; asked {
			known[svc.Object.Name] = true
		}
	}
	f.services = map[model.ServiceName][]model.Problem{}
	for _, p := range s.Problems {
		if name, _ := p.Service(); known[name] {
			f.services[name] = append(f.services[name], p)
		} else {
			f.others = append(f.others, p)
		}
	}
	return f
}

// describe fills in everything but name and hash, given the problems of the sources with
// the Service.
func (out *Service) describe(of *track.View, s *engine.Snapshot, found []model.Problem) {
	n := 0
	for _, p := range of.Ports {
		n += len(p.Frontends)
	}
	out.Frontends, out.Problems = slices.Grow(out.Frontends, n), problems(slices.Concat(found, of.Problems))
	if out.Frontends == nil {
		out.Frontends = []Frontend{}
	}
	out.count(of.Slices)
	failing, pending := false, of.Queued
	for _, p := range of.Ports {
		for i := range p.Frontends {
			out.Frontends = append(out.Frontends, frontendOf(p, &p.Frontends[i], s.Backend.Gaps[p.ID]))
		}
		for _, g := range model.OwnGaps(s.Backend.Gaps[p.ID]) {
			out.Problems = append(out.Problems, Problem{Reason: model.WhyUnsupported.String(), Detail: gap(p, g)})
		}
		switch err := s.Backend.Failures[p.ID]; {
		case errors.Is(err, ledger.ErrDeferred):
			pending = true
			out.Problems = append(out.Problems, Problem{Reason: Pending, Detail: fmt.Sprintf("%s: %v", p.ID, err)})
		case err != nil:
			failing = true
			out.Problems = append(out.Problems, Problem{Reason: model.Failing.String(), Detail: fmt.Sprintf("%s: %v", p.ID, err)})
		}
	}
	if out.State = model.StateOf(failing, len(out.Problems) > 0).String(); pending && !failing {
		out.State = Pending
	}
}

// frontendOf describes a frontend by what its mode does of it.
func frontendOf(p *model.Port, f *model.Frontend, gaps []model.Gap) Frontend {
	out := frontend(p, f)
	if _, out.Missing = GapsOf(f, gaps); out.Missing {
		out.Endpoints, out.Why = 0, "not programmed: "+model.WhyUnsupported.Text() // the Service's problems state what
	}
	return out
}

// GapsOf returns what a mode does otherwise for a frontend, given the gaps of its port. Where
// the frontend is not programmed at all, these are the reasons for that alone.
func GapsOf(f *model.Frontend, gaps []model.Gap) (texts []string, missing bool) {
	var why []string
	for _, g := range model.OwnGaps(gaps) {
		if g.Frontend.IsValid() && g.Frontend != f.At {
			continue
		}
		if texts = append(texts, g.Detail); g.Missing {
			why = append(why, g.Detail)
		}
	}
	if len(why) > 0 {
		return why, true
	}
	return texts, false
}

func frontend(p *model.Port, f *model.Frontend) Frontend {
	out := Frontend{Port: p.ID.Name, Kind: f.Kind.String(), Address: f.At.String(), Proto: p.ID.Proto.String()}
	if f.Kind == model.KindNodePort {
		out.Address = fmt.Sprintf("*:%d", f.At.Port())
	}
	out.Sources = Sources(f)
	act := f.On[model.FromOutside]
	if act.Pool != nil {
		out.Endpoints = len(act.Pool.Endpoints)
	}
	out.Why = act.Why.String()
	return out
}

// Sources lists the only clients that a frontend allows; nil for all.
func Sources(f *model.Frontend) []string {
	if !f.Restricted {
		return nil
	}
	list := make([]string, len(f.Allow))
	for i, r := range f.Allow {
		list[i] = r.String()
	}
	return list
}

// ShowSources reports which clients are let in, for people: a long list is cut short.
func ShowSources(list []string) string {
	switch {
	case list == nil:
		return "all"
	case len(list) == 0:
		return "none"
	}
	return printable.List(list, Shown)
}

// ofMode returns what the whole mode does not support, each once.
func ofMode(gaps map[model.PortID][]model.Gap) (ps []Problem) {
	for _, all := range gaps {
		for _, g := range all {
			p := Problem{Object: "data plane", Reason: model.WhyUnsupported.String(), Detail: g.Detail}
			if g.OfMode() && !slices.Contains(ps, p) {
				ps = append(ps, p)
			}
		}
	}
	slices.SortFunc(ps, func(a, b Problem) int { return strings.Compare(a.Detail, b.Detail) })
	return ps
}

func gap(p *model.Port, g model.Gap) string {
	if g.Frontend.IsValid() {
		return g.Frontend.String() + ": " + g.Detail
	}
	return p.ID.String() + ": " + g.Detail
}

func problems(ps []model.Problem) (out []Problem) {
	for _, p := range ps {
		out = append(out, Problem{Object: p.Object, Where: p.Where, Reason: p.Why.String(), Detail: p.Text()})
	}
	return out
}

// Filter selects Services by namespace, name and state; the zero value selects all.
type Filter struct {
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"` // with * and ? as in file names
	States    []string `json:"states,omitempty"`
}

// Check reports what is wrong with the pattern.
func (f *Filter) Check() error {
	_, err := path.Match(f.Name, "")
	return err
}

// All reports whether nothing is left out.
func (f *Filter) All() bool { return f.Namespace == "" && f.Name == "" && len(f.States) == 0 }

// Wide reports whether Services of all names are selected: then problems of no single Service are shown, too.
func (f *Filter) Wide() bool { return f.Namespace == "" && f.Name == "" }

// Named reports whether an object "namespace/name" is selected, if its state is.
func (f *Filter) Named(object string) bool {
	namespace, name, _ := strings.Cut(object, "/")
	if f.Namespace != "" && f.Namespace != namespace {
		return false
	}
	ok, _ := path.Match(f.Name, name)
	return f.Name == "" || ok
}

// Match reports whether an object "namespace/name" in a state is selected. A state
// that a verb does not have is empty.
func (f *Filter) Match(object, state string) bool {
	return f.Named(object) && (len(f.States) == 0 || slices.ContainsFunc(f.States, func(s string) bool { return strings.EqualFold(s, state) }))
}

// Worst orders Services by state: what needs attention first.
func Worst(a, b Service) int { return cmp.Compare(urgency(a.State), urgency(b.State)) }

// urgency is the place of a state among those of Services; one that is not known is the first.
func urgency(state string) int { return slices.Index(States(), state) }

// States are those that a Service can be in, the most urgent first.
func States() []string {
	return []string{model.Failing.String(), model.Partial.String(), Pending, model.Programmed.String()}
}

// Running returns the parts of a status that doctor's checks need.
func (d *Status) Running() *diagnosis.Running {
	r := &diagnosis.Running{Healthy: d.Healthy, Reasons: d.Reasons, Mode: d.Mode, Drift: d.Drift, Offload: d.Offload, Inputs: map[string]time.Duration{}}
	for _, in := range d.Inputs {
		if in.Unlisted {
			r.Unlisted = append(r.Unlisted, in.Name)
		}
		r.Inputs[in.Name] = time.Duration(in.Age * float64(time.Second))
	}
	for _, p := range d.Problems {
		if p.Reason == model.WhyDegraded.String() {
			r.Degraded = append(r.Degraded, p.Detail)
		}
	}
	for _, s := range d.Services {
		switch s.State {
		case model.Failing.String():
			r.Failing = append(r.Failing, s.Name)
		case model.Partial.String():
			r.Partial++
		case Pending:
			r.Pending++
		}
		for _, f := range s.Frontends {
			r.IPv6 = r.IPv6 || strings.HasPrefix(f.Address, "[")
			if port, ok := nodePort(f); ok {
				r.NodePorts = append(r.NodePorts, port)
			}
		}
	}
	slices.Sort(r.NodePorts)
	r.NodePorts = slices.Compact(r.NodePorts)
	return r
}

// nodePort returns the port of a frontend that is a node port of TCP.
func nodePort(f Frontend) (port uint16, ok bool) {
	rest, found := strings.CutPrefix(f.Address, "*:")
	if !found || f.Proto != model.TCP.String() {
		return 0, false
	}
	at, err := netip.ParseAddrPort("0.0.0.0:" + rest)
	return at.Port(), err == nil
}

// Health is the state of a running Tandem at one moment.
type Health struct {
	At       time.Time
	SyncedAt time.Time // the end of the last sync that succeeded; zero before the first
	Synced   bool      // the data plane was read back, and all that the source delivered was programmed once
	Stuck    bool      // changes have been waiting for too long
	Leaving  bool      // the node is being deleted, or marked for it by the cluster autoscaler
	Unfit    bool      // the node has no Node object, or does not fit the configuration: see model.Problem

	// Reasons states what is wrong, for people. It may also name conditions that set none of the
	// above, such as an API server that does not answer: the last known state is kept,
	// and traffic stays on the node.
	Reasons []string
}

// Healthy reports whether the programmed state can be relied on.
func (h Health) Healthy() bool { return h.Synced && !h.Stuck }

// Ready reports whether load balancers may send traffic to this node.
func (h Health) Ready() bool { return h.Healthy() && !h.Leaving && !h.Unfit }

// Alive reports whether changes make progress: a restart would help nothing else.
func (h Health) Alive() bool { return !h.Stuck }

// HealthOf judges a status. Patience is how long a change may wait for being
// programmed before the whole proxy counts as unhealthy: twice the sync period in
// kube-proxy. A Service that the data plane rejects while others work is reported in
// its own state. Stale states which inputs are out of date, in words.
func HealthOf(s engine.Status, patience time.Duration, stale []string) Health {
	h := Health{At: time.Now(), SyncedAt: s.SyncedAt, Synced: s.Adopted && s.SourceSynced && s.Synced, Leaving: s.Leaving, Unfit: s.Unfit != ""}
	add := func(format string, args ...any) { h.Reasons = append(h.Reasons, fmt.Sprintf(format, args...)) }
	reading := !s.ReadingAt.IsZero()
	switch {
	case reading:
		add("reading back the data plane has taken %s so far", h.At.Sub(s.ReadingAt).Round(time.Second))
	case !s.Adopted:
		add("the data plane has not been read back yet")
	}
	if s.Awaited != "" {
		add("unknown yet: %s; keeping what is installed", s.Awaited)
	} else if !s.SourceSynced {
		add("the source is not synced yet")
	} else if !s.Synced {
		add("nothing has been programmed yet")
	}
	if s.Deferred > 0 {
		add("objects still to be programmed: %d", s.Deferred)
	}
	// Waiting for the source is not stuck: the API server may be unreachable. Nor is a
	// read of the data plane: its driver bounds it, and another would begin it again.
	if waits := h.At.Sub(s.QueuedAt); !reading && s.SourceSynced && !s.QueuedAt.IsZero() && waits > patience {
		h.Stuck = true
		add("changes have not been programmed for %s", waits.Round(time.Second))
	}
	if s.Err != nil && !h.Healthy() {
		add("%v", s.Err)
	}
	if h.Leaving {
		add("the node is being deleted or marked for it")
	}
	if h.Unfit {
		add("%s", s.Unfit)
	}
	h.Reasons = append(h.Reasons, stale...)
	return h
}
