// SPDX-License-Identifier: Apache-2.0

package question

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// Plan states what a node would program. Its JSON form is stable: fields are added, not changed.
type Plan struct {
	Node     string        `json:"node"`
	Mode     string        `json:"mode"`
	Objects  int           `json:"objects"`
	Services []PlanService `json:"services"`
	Problems []string      `json:"problems,omitempty"`
	Notes    []string      `json:"notes,omitempty"` // such as what was assumed in the place of what an API server will assign
	Gaps     []PlanGap     `json:"gaps,omitempty"`

	Shared []string `json:"-"` // gaps that all ports have, each once
}

// PlanGap is something that the mode cannot do.
type PlanGap struct {
	Port   string `json:"port"`
	Front  string `json:"frontend,omitempty"` // empty when it is about the whole port
	Detail string `json:"detail"`
}

type PlanService struct {
	Name   string         `json:"name"`
	Fronts []PlanFrontend `json:"frontends"`
	// HealthCheckNodePort answers load balancers; absent for none.
	HealthCheckNodePort uint16 `json:"healthCheckNodePort,omitempty"`
}

type PlanFrontend struct {
	Port     string       `json:"port"`
	Kind     string       `json:"kind"`
	Address  string       `json:"address"`
	Protocol string       `json:"protocol"`
	Sources  []string     `json:"sources,omitzero"`   // the only clients admitted; absent for all, empty for none
	Affinity string       `json:"affinity,omitempty"` // how long a client stays with its endpoint
	Missing  bool         `json:"missing,omitempty"`  // the mode does not program it: see gaps
	Gaps     []string     `json:"gaps,omitempty"`     // what the mode does otherwise
	Answers  []PlanAction `json:"answers"`            // empty when it is missing
}

// PlanAction is the action for clients of some origins.
type PlanAction struct {
	From      string   `json:"from"`
	Verdict   string   `json:"verdict"`
	SNAT      bool     `json:"snat"`
	Why       string   `json:"why"`
	Endpoints []string `json:"endpoints,omitempty"`
}

// PlanOf is what was planned of a document, of the Services of a filter.
func PlanOf(of *Document, only Filter) Plan {
	d := Plan{Node: of.Host.Name, Mode: of.Facts.Mode, Objects: of.Plan.Objects, Services: []PlanService{}, Notes: of.Notes}
	for _, p := range of.Rejected {
		d.Problems = append(d.Problems, p.String())
	}
	for _, id := range slices.SortedFunc(maps.Keys(of.Plan.Gaps), model.PortID.Compare) {
		for _, g := range of.Plan.Gaps[id] {
			gap := PlanGap{Port: id.String(), Detail: g.Detail}
			if g.Frontend.IsValid() {
				gap.Front = g.Frontend.String()
			}
			d.Gaps = append(d.Gaps, gap)
			if g.OfMode() && !slices.Contains(d.Shared, g.Detail) {
				d.Shared = append(d.Shared, g.Detail)
			}
		}
	}
	for _, s := range of.Services {
		ps := PlanService{Name: s.Object.Name.String(), Fronts: []PlanFrontend{}}
		if !only.Match(ps.Name, "") {
			continue
		}
		for _, p := range s.Ports {
			for i := range p.Frontends {
				ps.Fronts = append(ps.Fronts, planned(p, &p.Frontends[i], of.Plan.Gaps[p.ID]))
			}
			ps.HealthCheckNodePort = p.HealthPort
		}
		d.Services = append(d.Services, ps)
	}
	return d
}

// planned describes what the mode does with connections to a frontend: what policy
// decides, except for the gaps of the mode.
func planned(p *model.Port, f *model.Frontend, gaps []model.Gap) PlanFrontend {
	out := PlanFrontend{Port: p.ID.Name, Kind: f.Kind.String(), Address: f.At.String(), Protocol: p.ID.Proto.String()}
	if f.Kind == model.KindNodePort {
		out.Address = fmt.Sprintf("%s:%d", map[model.Family]string{model.IPv4: "*", model.IPv6: "[*]"}[p.ID.Family], f.At.Port())
	}
	out.Sources = Sources(f)
	if out.Gaps, out.Missing = GapsOf(f, gaps); out.Missing { // its action otherwise does not matter
		out.Answers = []PlanAction{}
		return out
	}
	if p.SessionAffinity > 0 {
		out.Affinity = p.SessionAffinity.String()
	}
	for origin := range f.On {
		a := planAction(p, model.Origin(origin), f.On[origin])
		if n := len(out.Answers); n > 0 && out.Answers[n-1].same(a) {
			out.Answers[n-1].From += ", " + a.From
			continue
		}
		out.Answers = append(out.Answers, a)
	}
	return out
}

func planAction(p *model.Port, from model.Origin, act model.Action) PlanAction {
	a := PlanAction{From: from.String(), Verdict: act.Verdict.String(), SNAT: act.SNAT, Why: p.WhyText(act.Why)}
	if act.Pool != nil {
		for _, e := range act.Pool.Endpoints {
			a.Endpoints = append(a.Endpoints, e.Addr.String())
		}
		slices.Sort(a.Endpoints)
	}
	return a
}

func (a PlanAction) same(b PlanAction) bool {
	return a.Verdict == b.Verdict && a.SNAT == b.SNAT && a.Why == b.Why && slices.Equal(a.Endpoints, b.Endpoints)
}

// Edit is what tandem plan --against-running asks about: Services, EndpointSlices,
// routes and grants that take the place of those of the same names.
type Edit struct {
	model.Objects
	Prune bool `json:"prune,omitempty"` // and all others are deleted

	// Unassigned is what Services leave to the API server, which takes node ports from NodePorts.
	Unassigned []model.Unassigned `json:"unassigned,omitempty"`
	NodePorts  config.PortRange   `json:"nodePorts,omitzero"`
}

// Preview states what an edit would change on a node. Its JSON form is stable.
type Preview struct {
	Node     string           `json:"node" nodes:"own"`
	Mode     string           `json:"mode"`
	Services []PreviewService `json:"services"`
	Assumed  []string         `json:"assumed,omitempty"`  // as a placeholder for what the API server will assign
	Problems []Problem        `json:"problems,omitempty"` // of the edited Services
	Unknown  string           `json:"unknown,omitempty"`  // why connections were not counted

	index map[string]int // of Services, by name, while it is made
}

// PreviewService is what it would change of one Service.
type PreviewService struct {
	Name    string             `json:"name" nodes:"key"`
	Changes []string           `json:"changes,omitempty"` // in terms of the Service: "port 80 → 81"
	Added   int                `json:"added"`             // objects
	Changed int                `json:"changed"`
	Deleted int                `json:"deleted"`
	Objects []dataplane.Change `json:"objects" nodes:"-"`
	// Connections are those tracked to frontends that change; Moved are those of them
	// whose frontend or endpoint would be gone.
	Connections int `json:"connections" nodes:"-"`
	Moved       int `json:"moved" nodes:"-"`
}

// PreviewEdit is the question of tandem plan --against-running.
func PreviewEdit() Verb[Edit, Preview] {
	return Verb[Edit, Preview]{Name: "preview", Kernel: true, Answer: preview, Needs: func(Edit) Needs {
		return Needs{Services: (*track.Tracker).Unsorted}
	}}
}

func preview(ctx context.Context, d *Document, e Edit) (Preview, error) {
	assumed := e.assign(d.Snapshot, d.At)
	deltas, problems := e.Deltas(d.Snapshot, d.At, d.Plane.Listening)
	var changes []dataplane.Change
	if d.Plane.Preview != nil {
		changes = d.Plane.Preview(deltas)
	}
	out := PreviewOf(changes, deltas, problems)
	out.Node, out.Mode, out.Assumed = d.Host.Name, d.Facts.Mode, assumed
	if len(deltas) > 0 && d.Plane.Flows != nil {
		count := countFlows(d.Host, deltas)
		if err := d.Plane.Flows(ctx, count.see); err != nil {
			out.Unknown = err.Error()
		}
		count.add(&out)
	}
	return out, nil
}

// Deltas resolves what the edit touches, and returns which ports differ from the
// running ones and the problems of the edited Services that these do not have already. Ask, which may be nil,
// tells which processes of the node listen where the edit asks for its own addresses.
func (e Edit) Deltas(s *engine.Snapshot, now time.Time, ask track.Ask) (deltas []model.Delta, problems []model.Problem) {
	t := track.Resume(s.Host, s.Services, &model.Objects{Nodes: s.Others, Slices: s.Orphans, Routes: s.Routes, Grants: s.Grants}, s.Suspects, now)
	if ask != nil {
		t.KeepListeners(ask)
	}
	t.SetAll(&e.Objects)
	if e.Prune {
		e.prune(t, s)
	}
	deltas = t.Flush()
	slices.SortFunc(deltas, func(a, b model.Delta) int { return a.ID().Compare(b.ID()) })
	had := make(map[model.ServiceName][]model.Problem, len(e.Services))
	for _, svc := range e.Services {
		had[svc.Name] = nil
	}
	for _, svc := range s.Services {
		if _, edited := had[svc.Object.Name]; edited {
			had[svc.Object.Name] = svc.Problems
		}
	}
	for _, svc := range e.Services {
		for _, p := range t.Service(svc.Name).Problems {
			if !slices.ContainsFunc(had[svc.Name], func(q model.Problem) bool { return q.Why == p.Why && q.Detail == p.Detail }) {
				problems = append(problems, p)
			}
		}
	}
	return deltas, problems
}

// Brought is how many problems of an edit's manifests the running proxy does not have of the same objects already,
// whichever file they are in.
func Brought(found []model.Problem, running *Status) (n int) {
	had := map[Problem]bool{}
	know := func(all []Problem) {
		for _, p := range all {
			p.Where = ""
			had[p] = true
		}
	}
	know(running.Problems)
	for i := range running.Services {
		know(running.Services[i].Problems)
	}
	for _, p := range problems(found) {
		if p.Where = ""; !had[p] {
			n++
		}
	}
	return n
}

// EditOf is the edit that makes the inputs of one document of another's.
func EditOf(d *Document) Edit { return Edit{Objects: inputsOf(d.Snapshot), Prune: true} }

func inputsOf(s *engine.Snapshot) model.Objects {
	in := model.Objects{Slices: slices.Clone(s.Orphans), Routes: s.Routes, Grants: s.Grants}
	for _, svc := range s.Each() {
		in.Services, in.Slices = append(in.Services, svc.Object), append(in.Slices, svc.Slices...)
	}
	return in
}

// prune deletes from a tracker what a snapshot has and the edit has not.
func (e Edit) prune(t *track.Tracker, s *engine.Snapshot) {
	keep := map[model.Key]bool{}
	for o := range e.All() {
		keep[o.Key()] = true
	}
	in := inputsOf(s)
	for o := range in.All() {
		if !keep[o.Key()] {
			t.Delete(o)
		}
	}
}

// PreviewOf renders the changes of a backend, by Service.
func PreviewOf(changes []dataplane.Change, deltas []model.Delta, found []model.Problem) Preview {
	p := Preview{Services: []PreviewService{}, Problems: problems(found), index: map[string]int{}}
	for _, d := range deltas {
		s := p.service(d.ID().Service)
		for _, text := range terms(d) {
			if !slices.Contains(s.Changes, text) { // another port or family has the same
				s.Changes = append(s.Changes, text)
			}
		}
	}
	for _, c := range changes {
		s := p.service(c.Owner.Service)
		s.Objects = append(s.Objects, c)
		switch c.Verb {
		case ledger.Create:
			s.Added++
		case ledger.Replace:
			s.Changed++
		case ledger.Delete:
			s.Deleted++
		}
	}
	return p
}

// terms says what a delta changes as people write Services: ports, addresses, endpoints.
func terms(d model.Delta) (texts []string) {
	var was, is model.Port
	if d.Old != nil {
		was = *d.Old
	}
	if d.New != nil {
		is = *d.New
	}
	say := func(format string, args ...any) { texts = append(texts, fmt.Sprintf(format, args...)) }
	proto := d.ID().Proto
	had, has := frontendsOf(&was), frontendsOf(&is)
	added := map[netip.Addr][]*model.Frontend{} // that the old port has not, by address
	for i := range is.Frontends {
		if f := &is.Frontends[i]; !had[placeOf(f)] {
			added[f.At.Addr()] = append(added[f.At.Addr()], f)
		}
	}
	for i := range was.Frontends {
		f := &was.Frontends[i]
		if has[placeOf(f)] {
			continue
		}
		at := f.At.Addr()
		if others := added[at]; len(others) > 0 && others[0].Kind == f.Kind {
			added[at] = others[1:]
			kind := map[bool]string{true: "node port", false: "port"}[f.Kind == model.KindNodePort]
			say("%s %d → %d", kind, f.At.Port(), others[0].At.Port())
			continue
		}
		say("%s %s/%s deleted", f.Kind, f.At, proto)
	}
	for i := range is.Frontends {
		if f := &is.Frontends[i]; slices.Contains(added[f.At.Addr()], f) {
			say("%s %s/%s added", f.Kind, f.At, proto)
		}
	}
	before, after := endpointsOf(&was), endpointsOf(&is)
	for _, at := range after {
		if !before.Has(at) {
			say("endpoint %s/%s added", at, proto)
		}
	}
	for _, at := range before {
		if !after.Has(at) {
			say("endpoint %s/%s deleted", at, proto)
		}
	}
	if d.Old != nil && d.New != nil && was.SessionAffinity != is.SessionAffinity {
		say("session affinity %s → %s", affinity(was.SessionAffinity), affinity(is.SessionAffinity))
	}
	if was.HealthPort != is.HealthPort {
		say("health check node port %d → %d", was.HealthPort, is.HealthPort)
	}
	if len(texts) == 0 {
		say("sources, traffic policy or SNAT changed")
	}
	return texts
}

// place is what a frontend is to people: its kind, and where it is.
type place struct {
	kind model.Kind
	at   netip.AddrPort
}

func placeOf(f *model.Frontend) place { return place{f.Kind, f.At} }

// frontendsOf are the places of a port's frontends, of which it may have thousands.
func frontendsOf(p *model.Port) map[place]bool {
	all := make(map[place]bool, len(p.Frontends))
	for i := range p.Frontends {
		all[placeOf(&p.Frontends[i])] = true
	}
	return all
}

func affinity(timeout time.Duration) string {
	if timeout == 0 {
		return "none"
	}
	return timeout.String()
}

// endpointsOf are those of all pools of a port.
func endpointsOf(p *model.Port) flows.Set {
	var all []netip.AddrPort
	for _, pool := range p.Pools() {
		for _, e := range pool.Endpoints {
			all = append(all, e.Addr)
		}
	}
	return flows.SetOf(all...)
}

func (p *Preview) service(n model.ServiceName) *PreviewService {
	name := n.String()
	i, known := p.index[name]
	if !known {
		i = len(p.Services)
		p.index[name] = i
		p.Services = append(p.Services, PreviewService{Name: name, Objects: []dataplane.Change{}})
	}
	return &p.Services[i]
}

// flowCounts counts the flows that changes concern.
type flowCounts struct {
	host *model.Host
	at   map[model.Destination]*flowCount
}

type flowCount struct {
	service     model.ServiceName
	keeps       flows.Set // endpoints that remain
	total, lost int
}

// countFlows begins to count for deltas.
func countFlows(host *model.Host, deltas []model.Delta) *flowCounts {
	c := &flowCounts{host: host, at: map[model.Destination]*flowCount{}}
	for _, d := range deltas {
		if d.Old == nil {
			continue // nothing led there
		}
		for i := range d.Old.Frontends {
			at := d.Old.Frontends[i].At
			one := &flowCount{service: d.ID().Service}
			if d.New != nil {
				one.keep(d.New, at)
			}
			c.at[model.Destination{Proto: d.ID().Proto, At: at}] = one
		}
	}
	return c
}

// keep notes the endpoints that a frontend still has.
func (f *flowCount) keep(p *model.Port, at netip.AddrPort) {
	var all []netip.AddrPort
	for i := range p.Frontends {
		if p.Frontends[i].At != at {
			continue
		}
		for _, act := range p.Frontends[i].On {
			if act.Pool == nil {
				continue
			}
			for _, e := range act.Pool.Endpoints {
				all = append(all, e.Addr)
			}
		}
	}
	f.keeps = flows.SetOf(all...)
}

// see takes one flow.
func (c *flowCounts) see(f flows.Flow) {
	if !f.Translated() {
		return
	}
	one := c.at[model.Destination{Proto: f.Proto, At: f.Dst}]
	if one == nil && slices.Contains(c.host.IPs, f.Dst.Addr()) {
		any := model.FamilyOf(f.Dst.Addr()).Unspecified()
		one = c.at[model.Destination{Proto: f.Proto, At: netip.AddrPortFrom(any, f.Dst.Port())}]
	}
	if one == nil {
		return
	}
	one.total++
	if !one.keeps.Has(f.From) {
		one.lost++
	}
}

// add puts the counts into a preview.
func (c *flowCounts) add(p *Preview) {
	for _, one := range c.at {
		s := p.service(one.service)
		s.Connections += one.total
		s.Moved += one.lost
	}
}

// Pending reports whether the edit changes anything.
func (p Preview) Pending() bool { return len(p.Services) > 0 }
