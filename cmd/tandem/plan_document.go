// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// world is what a folder of manifests means to a node in a mode.
type world struct {
	mode     dataplane.Mode
	host     *model.Host
	services []*track.View
	ports    []*model.Port
	plan     dataplane.Plan
	problems []model.Problem
	own      []string // notes on external IPs that are this node's addresses
}

// planDocument is the JSON form of a plan. Fields are added, not changed.
type planDocument struct {
	Node     string        `json:"node"`
	Mode     string        `json:"mode"`
	Objects  int           `json:"objects"`
	Services []planService `json:"services"`
	Problems []string      `json:"problems,omitempty"`
	Gaps     []planGap     `json:"gaps,omitempty"`

	shared []string // gaps that all ports have, each once
}

// planGap is something that the mode cannot do.
type planGap struct {
	Port   string `json:"port"`
	Front  string `json:"frontend,omitempty"` // empty when it is about the whole port
	Detail string `json:"detail"`
}

type planService struct {
	Name   string      `json:"name"`
	Fronts []planFront `json:"frontends"`
	// HealthCheckNodePort answers load balancers; absent for none.
	HealthCheckNodePort uint16 `json:"healthCheckNodePort,omitempty"`
}

type planFront struct {
	Port     string       `json:"port"`
	Kind     string       `json:"kind"`
	Address  string       `json:"address"`
	Protocol string       `json:"protocol"`
	Sources  []string     `json:"sources,omitzero"`   // the only clients admitted; absent for all, empty for none
	Affinity string       `json:"affinity,omitempty"` // how long a client stays with its endpoint
	Missing  bool         `json:"missing,omitempty"`  // the mode does not program it: see gaps
	Gaps     []string     `json:"gaps,omitempty"`     // what the mode does otherwise
	Answers  []planAnswer `json:"answers"`            // empty when it is missing
}

// planAnswer is the action for clients of some origins.
type planAnswer struct {
	From      string   `json:"from"`
	Verdict   string   `json:"verdict"`
	SNAT      bool     `json:"snat"`
	Why       string   `json:"why"`
	Endpoints []string `json:"endpoints,omitempty"`
}

func (w *world) document() planDocument {
	d := planDocument{Node: w.host.Name, Mode: string(w.mode.Name), Objects: w.plan.Objects, Services: []planService{}}
	for _, p := range w.problems {
		d.Problems = append(d.Problems, p.String())
	}
	for _, id := range sortedIDs(w.plan.Gaps) {
		for _, g := range w.plan.Gaps[id] {
			gap := planGap{Port: id.String(), Detail: g.Detail}
			if g.Frontend.IsValid() {
				gap.Front = g.Frontend.String()
			}
			d.Gaps = append(d.Gaps, gap)
			if g.OfMode() && !slices.Contains(d.shared, g.Detail) {
				d.shared = append(d.shared, g.Detail)
			}
		}
	}
	for _, s := range w.services {
		ps := planService{Name: s.Object.Name.String(), Fronts: []planFront{}}
		for _, p := range s.Ports {
			for i := range p.Frontends {
				ps.Fronts = append(ps.Fronts, describeFront(p, &p.Frontends[i], w.plan.Gaps[p.ID]))
			}
			ps.HealthCheckNodePort = p.HealthPort
		}
		d.Services = append(d.Services, ps)
	}
	return d
}

// describeFront describes what the mode does with connections to a frontend: what policy
// decides, except for the gaps of the mode.
func describeFront(p *model.Port, f *model.Frontend, gaps []model.Gap) planFront {
	out := planFront{Port: p.ID.Name, Kind: f.Kind.String(), Address: f.At.String(), Protocol: p.ID.Proto.String()}
	if f.Kind == model.KindNodePort {
		out.Address = fmt.Sprintf("%s:%d", map[model.Family]string{model.IPv4: "*", model.IPv6: "[*]"}[p.ID.Family], f.At.Port())
	}
	out.Sources = status.Sources(f)
	if out.Gaps, out.Missing = status.GapsOf(f, gaps); out.Missing { // its action otherwise does not matter
		out.Answers = []planAnswer{}
		return out
	}
	if p.SessionAffinity > 0 {
		out.Affinity = p.SessionAffinity.String()
	}
	for origin := range f.On {
		a := answer(p, model.Origin(origin), f.On[origin])
		if n := len(out.Answers); n > 0 && out.Answers[n-1].same(a) {
			out.Answers[n-1].From += ", " + a.From
			continue
		}
		out.Answers = append(out.Answers, a)
	}
	return out
}

func answer(p *model.Port, from model.Origin, act model.Action) planAnswer {
	a := planAnswer{From: from.String(), Verdict: act.Verdict.String(), SNAT: act.SNAT, Why: p.WhyText(act.Why)}
	if act.Pool != nil {
		for _, e := range act.Pool.Endpoints {
			a.Endpoints = append(a.Endpoints, e.Addr.String())
		}
		slices.SortFunc(a.Endpoints, cmp.Compare[string])
	}
	return a
}

func sortedIDs(gaps map[model.PortID][]model.Gap) []model.PortID {
	ids := make([]model.PortID, 0, len(gaps))
	for id := range gaps {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, model.PortID.Compare)
	return ids
}

// report is the plan of the Services of a filter; native is always all of it.
func (w *world) report(only *filter) report {
	d := w.document()
	d.Services = slices.DeleteFunc(d.Services, func(s planService) bool { return !only.Match(s.Name, "") })
	return report{
		document: d,
		text:     func(s *screen) error { s.table(d.table()); return nil },
		own: map[string]func(io.Writer) error{
			"summary": func(out io.Writer) error { return w.summary(out, d) },
			"native":  func(out io.Writer) error { _, err := io.WriteString(out, w.plan.Native); return err },
		},
	}
}

// table has a row for each action of each frontend.
func (d planDocument) table() table {
	t := table{columns: []column{
		{name: "SERVICE"}, {name: "FRONTEND", keep: true}, {name: "KIND"}, {name: "FROM"}, {name: "ACTION"}, {name: "SOURCES"}, {name: "WHY", wide: true},
	}}
	for _, svc := range d.Services {
		name := svc.Name
		for _, f := range svc.Fronts {
			at, kind, sources := f.Address+"/"+f.Protocol, f.Kind, status.ShowSources(f.Sources)
			if f.Missing {
				t.add(name, at, kind, "-", "not programmed", sources, strings.Join(f.Gaps, "; "))
				name = ""
			}
			for _, a := range f.Answers {
				t.add(name, at, kind, a.From, a.action(), sources, a.Why)
				name, at, kind, sources = "", "", "", ""
			}
		}
	}
	return t
}

// summary prints each frontend with the action for its clients, and why.
func (w *world) summary(out io.Writer, d planDocument) error {
	for _, s := range d.Services {
		fmt.Fprintf(out, "%s", printable.Text(s.Name))
		if s.HealthCheckNodePort != 0 {
			fmt.Fprintf(out, ", health checks on port %d", s.HealthCheckNodePort)
		}
		fmt.Fprintln(out)
		for _, f := range s.Fronts {
			fmt.Fprintf(out, "  %s/%s  %s%s\n", f.Address, f.Protocol, f.Kind, f.conditions())
			for _, g := range f.Gaps {
				fmt.Fprintf(out, "    ! %s\n", printable.Text(g))
			}
			for _, a := range f.Answers {
				fmt.Fprintf(out, "    from %-19s %s\n", a.From, a.text())
			}
		}
	}
	for _, text := range d.shared {
		fmt.Fprintf(out, "! %s\n", printable.Text(text))
	}
	_, err := fmt.Fprintf(out, "plan: %s, %s, %s in mode %s for node %s\n",
		printable.Count(len(w.services), "Service"), printable.Count(len(w.ports), "port"), printable.Count(w.plan.Objects, "object"), w.mode.Name, printable.Text(w.host.Name))
	return err
}

// conditions are what else is to be known of a frontend.
func (f planFront) conditions() string {
	text := ""
	if f.Missing {
		text += ", not programmed"
	}
	if f.Sources != nil {
		text += ", sources " + status.ShowSources(f.Sources)
	}
	if f.Affinity != "" {
		text += ", affinity " + f.Affinity
	}
	return text
}

// shown is how many endpoints a summary names.
const shown = 4

func (a planAnswer) same(b planAnswer) bool {
	return a.Verdict == b.Verdict && a.SNAT == b.SNAT && a.Why == b.Why && slices.Equal(a.Endpoints, b.Endpoints)
}

func (a planAnswer) text() string { return a.action() + " (" + a.Why + ")" }

// action describes the fate of a connection.
func (a planAnswer) action() string {
	s := a.Verdict
	for i, e := range a.Endpoints {
		if i == shown {
			s += fmt.Sprintf(" and %d more", len(a.Endpoints)-shown)
			break
		}
		s += " " + e
	}
	if a.SNAT {
		s += ", SNAT"
	}
	return s
}
