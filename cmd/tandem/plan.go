// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/platform"
)

func newPlan() *cobra.Command {
	var flags configFlags
	var out output
	var only filter
	var running, prune bool
	var part string
	var from snapshotFlag
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what would be programmed, without programming it",
		Long: `plan reads manifests and shows what a node would program for them, in any mode and
on any system. It needs no privileges and changes nothing. The exit code is 1 when
there was a problem, such as something rejected.

With --against-running it asks the running tandem what the manifests would change on
this node: objects added, changed and deleted for each Service, and the tracked
connections that these concern. Services and EndpointSlices of the manifests take the
place of those of the same names; with --prune all others are deleted. The exit code
is 3 when something would change.`,
		Example: `  tandem plan --manifests ./services --node node-1
  tandem plan --manifests ./services --proxy-mode nftables -o native | nft -c -f -
  tandem plan --manifests ./services --proxy-mode iptables -o native --part ip6tables-restore
  kubectl get -o yaml service/web | sed s/80/81/ | tandem plan --against-running --manifests -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := only.check(); err != nil {
				return err
			}
			if err := runningFlags(cmd, running); err != nil {
				return err
			}
			if running {
				return planAgainstRunning(cmd, &flags, &out, prune)
			}
			w, err := planWorld(cmd, &flags, &from)
			if err != nil {
				return err
			}
			printProblems(cmd, w.problems)
			for _, note := range w.own {
				fmt.Fprintf(cmd.ErrOrStderr(), "! %s\n", printable.Text(note))
			}
			if err := w.selectPart(part); err != nil {
				return err
			}
			if err := out.print(cmd, w.report(&only)); err != nil {
				return err
			}
			return problemsError(len(w.problems))
		},
	}
	flags.register(c)
	c.Flags().BoolVar(&running, "against-running", false, "ask the running tandem what the manifests would change on this node")
	c.Flags().BoolVar(&prune, "prune", false, "with --against-running: delete what is not in the manifests")
	out.register(c, "*summary", "native")
	only.register(c)
	from.register(c)
	c.MarkFlagsMutuallyExclusive("snapshot", "manifests")
	c.Flags().StringVar(&part, "part", "", "with -o native: only this part, as its own tool reads it, such as ip6tables-restore")
	complete(c, "part", "nft", "iptables-restore", "ip6tables-restore", "ipset", "ip-4", "ip-6", "ipvsadm")
	return c
}

// problemsError is the error for the number of problems that were printed, of which not all
// reject something; nil for none.
func problemsError(n int) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s, see above", printable.Count(n, "problem"))
}

// planWorld is that of manifests, or of a snapshot.
func planWorld(cmd *cobra.Command, flags *configFlags, from *snapshotFlag) (*world, error) {
	file, err := from.read(cmd)
	switch {
	case err != nil:
		return nil, err
	case file != nil:
		w, _, err := replayed(file)
		return w, err
	}
	c, notes, err := flags.config(needManifests)
	if err != nil {
		return nil, err
	}
	printNotes(cmd, notes)
	return readWorld(cmd, c)
}

// needManifests is what plan needs: it reads no API server.
func needManifests(c *config.Config) []config.Finding {
	if c.Manifests != "" {
		return nil
	}
	return []config.Finding{{Name: "--manifests", Text: "required: a folder or file of manifests, or - for the standard input"}}
}

func readWorld(cmd *cobra.Command, c *config.Config) (*world, error) {
	found, err := manifests.Read(cmd.Context(), c.Manifests, c.NodePortRange)
	if err != nil {
		return nil, err
	}
	w := &world{}
	if w.mode, err = platform.Find(c.Mode); err != nil {
		return nil, err
	}
	for _, p := range found.Problems {
		w.problems = append(w.problems, p.Model())
	}
	node := ownNode(found.Nodes, c.NodeName)
	machine := hereWithout(node, c)
	w.host = resolve.Host(c, node, found.ServiceCIDRs, machine)
	w.problems = append(w.problems, resolve.HostProblems(c, node, found.ServiceCIDRs, machine, resolve.AnyNodePort(found.Services))...)
	ask, done := sockets(c)
	defer done()
	w.services, w.ports = track.OnceAsking(w.host, &found.Objects, ask)
	for _, s := range w.services {
		w.problems = append(w.problems, s.Problems...)
		w.own = append(w.own, ownAddresses(w.host, s)...)
	}
	w.plan = w.mode.Plan(c, w.host, w.ports)
	return w, nil
}

// hereWithout is this machine where manifests have no Node object that would say more, and
// where no name says that another is meant. Where its addresses cannot be read it has none.
func hereWithout(node *model.Node, c *config.Config) (m model.Machine) {
	if node == nil && c.NodeIsHost {
		m.Addresses, _ = platform.LocalAddresses()
	}
	return m
}

// sockets tells what listens on this machine, where it is the node and can tell.
func sockets(c *config.Config) (ask track.Ask, done func()) {
	if c.NodeIsHost {
		if l, err := platform.Listeners(); err == nil {
			return l.At, func() { l.Close() }
		}
	}
	return nil, func() {}
}

// ownAddresses are notes on external IPs that are the node's own addresses and that a Service has.
func ownAddresses(host *model.Host, s *track.View) (notes []string) {
	for _, place := range resolve.AsksOwn(host, s.Object) {
		if slices.ContainsFunc(s.Ports, func(p *model.Port) bool {
			return p.ID.Proto == place.Proto && slices.ContainsFunc(p.Frontends, func(f model.Frontend) bool {
				return f.Kind == model.KindExternalIP && f.At == place.At
			})
		}) {
			notes = append(notes, fmt.Sprintf("Service %s: external IP %s (%s) is an address of this node; it is served while no process of the node listens there, and other nodes leave it to this one",
				s.Object.Name, place.At, place.Proto))
		}
	}
	return notes
}

func ownNode(nodes []*model.Node, name string) *model.Node {
	for _, n := range nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// runningFlags rejects flags without a meaning together with --against-running, or without it.
func runningFlags(cmd *cobra.Command, running bool) error {
	fs := cmd.Flags()
	if !running {
		if fs.Changed("prune") {
			return usageError{errors.New("--prune needs --against-running")}
		}
		return nil
	}
	for _, name := range []string{"namespace", "name", "snapshot", "part"} {
		if fs.Changed(name) {
			return usageError{fmt.Errorf("--%s does not apply to --against-running", name)}
		}
	}
	if o := fs.Lookup("output"); o != nil && o.Value.String() == "native" {
		return usageError{errors.New("-o native does not apply to --against-running")}
	}
	return nil
}

// planAgainstRunning is plan --against-running.
func planAgainstRunning(cmd *cobra.Command, flags *configFlags, out *output, prune bool) error {
	c, notes, err := flags.config(needManifests)
	if err != nil {
		return err
	}
	printNotes(cmd, notes)
	found, err := manifests.Read(cmd.Context(), c.Manifests, c.NodePortRange)
	if err != nil {
		return err
	}
	var problems []model.Problem
	for _, p := range found.Problems {
		problems = append(problems, p.Model())
	}
	printProblems(cmd, problems)
	if prune && len(problems) > 0 {
		return fmt.Errorf("%d manifests were rejected, see above: --prune would delete what they describe", len(problems))
	}
	p, err := platform.Preview().Ask(cmd.Context(), platform.Edit{Services: found.Services, Slices: found.Slices, Routes: found.Routes, Grants: found.Grants, Prune: prune})
	if err != nil {
		return err
	}
	if err := out.print(cmd, reportOf(p)); err != nil {
		return err
	}
	return previewError(len(problems), p)
}

// previewError is the error of a preview: problems take precedence over changes.
func previewError(manifestProblems int, p question.Preview) error {
	if err := problemsError(manifestProblems + len(p.Problems)); err != nil || !p.Pending() {
		return err
	}
	return differsError("the manifests would change the data plane")
}

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
	out.Sources = question.Sources(f)
	if out.Gaps, out.Missing = question.GapsOf(f, gaps); out.Missing { // its action otherwise does not matter
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
			at, kind, sources := f.Address+"/"+f.Protocol, f.Kind, question.ShowSources(f.Sources)
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
		text += ", sources " + question.ShowSources(f.Sources)
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

// nativePart is the part of a native plan for one tool.
type nativePart struct{ name, text string }

// nativeParts cuts a plan at the lines that name the tool of what follows: "# TOOL
// ARGUMENTS". A plan without any is nft's, or HNS' JSON.
func nativeParts(mode config.Mode, native string) (parts []nativePart) {
	name, text := "nft", ""
	if mode == "kernelspace" {
		name = "hns"
	}
	for line := range strings.Lines(native) {
		if head, ok := strings.CutPrefix(line, "# "); ok {
			if text != "" {
				parts = append(parts, nativePart{name, text})
			}
			name, text = partName(head), ""
			continue
		}
		if strings.TrimSpace(line) != "" {
			text += line
		}
	}
	return append(parts, nativePart{name, text})
}

// partName is the tool of a head line, with what distinguishes two of its parts.
func partName(head string) string {
	words := strings.Fields(strings.ReplaceAll(head, ";", " "))
	if len(words) > 1 && words[0] == "ip" {
		return words[0] + words[1]
	}
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// selectPart leaves one part of a native plan; all with "".
func (w *world) selectPart(name string) error {
	if name == "" {
		return nil
	}
	var names []string
	for _, p := range nativeParts(w.mode.Name, w.plan.Native) {
		if p.name == name {
			w.plan.Native = p.text
			return nil
		}
		names = append(names, p.name)
	}
	return usageError{fmt.Errorf("--part %s: mode %s has %s", name, w.mode.Name, strings.Join(names, ", "))}
}
