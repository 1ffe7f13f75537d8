// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
)

func newPlan() *cobra.Command {
	var out output
	var only filter
	var running, prune bool
	var part, against string
	from := origin{flags: new(configFlags)}
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what would be programmed, without programming it",
		Long: `plan reads manifests and shows what a node would program for them, in any mode and
on any system. It needs no privileges and changes nothing. The exit code is 1 when
there was a problem, such as something rejected. Of manifests as people apply them, cluster
IPs and node ports that the API server would assign have placeholders, and each is said.

With --against-running it asks the running tandem what the manifests would change on
this node: objects added, changed and deleted for each Service, and the tracked
connections that these concern. Services and EndpointSlices of the manifests take the
place of those of the same names; with --prune all others are deleted. The exit code
is 3 when something would change, and 1 when the manifests bring problems: those that a
Service has already do not count. What manifests leave to the API server stays as it is in
a Service that is there, and has placeholders in a new one.

With --snapshot A --against B it shows what has changed from one snapshot to the other:
what A's node would change to serve B's Services. The exit code is 3 when that is something.`,
		Example: `  tandem plan --manifests ./services --node node-1
  tandem plan --manifests ./services --proxy-mode nftables -o native | nft -c -f -
  tandem plan --manifests ./services --proxy-mode iptables -o native --part ip6tables-restore
  kubectl get -o yaml service/web | sed s/80/81/ | tandem plan --against-running --manifests -
  tandem plan --snapshot yesterday.snapshot --against today.snapshot`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := only.check(); err != nil {
				return err
			}
			if err := againstFlags(cmd, running, against); err != nil {
				return err
			}
			if against != "" {
				return planAgainstSnapshot(cmd, &from, &out, against)
			}
			if running {
				return planAgainstRunning(cmd, from.flags, &out, prune)
			}
			from.applied = true
			d, err := from.document(cmd)
			if err == nil && d == nil {
				d, err = from.manifests(cmd) // which reports that they are missing
			}
			if err != nil {
				return err
			}
			printNotes(cmd, d.Rejected)
			said := newScreen(cmd.ErrOrStderr())
			first(said, d.Notes, listed, "! and %d more (-o json)", func(note string) { said.printf("! %s\n", printable.Text(note)) })
			if err := said.flush(); err != nil {
				return err
			}
			if err := selectPart(d, part); err != nil {
				return err
			}
			if err := out.print(cmd, planReport(d, &only)); err != nil {
				return err
			}
			return problemsError(len(d.Rejected))
		},
	}
	from.register(c)
	c.Flags().BoolVar(&running, "against-running", false, "ask the running tandem what the manifests would change on this node")
	c.Flags().StringVar(&against, "against", "", "with --snapshot: another snapshot, to show what has changed from the one to the other")
	c.Flags().BoolVar(&prune, "prune", false, "with --against-running: delete what is not in the manifests")
	out.register(c, "*summary", "native")
	only.register(c)
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

// againstFlags rejects flags without a meaning together with --against-running or --against, or without
// them.
func againstFlags(cmd *cobra.Command, running bool, against string) error {
	fs := cmd.Flags()
	mode, no := "--against-running", []string{"namespace", "name", "snapshot", "part"}
	switch {
	case against != "" && !fs.Changed("snapshot"):
		return usageError{errors.New("--against needs --snapshot")}
	case against != "":
		mode, no = "--against", []string{"namespace", "name", "against-running", "part"}
	case !running:
		if fs.Changed("prune") {
			return usageError{errors.New("--prune needs --against-running")}
		}
		return nil
	}
	for _, name := range no {
		if fs.Changed(name) {
			return usageError{fmt.Errorf("--%s does not apply to %s", name, mode)}
		}
	}
	if o := fs.Lookup("output"); o != nil && o.Value.String() == "native" {
		return usageError{fmt.Errorf("-o native does not apply to %s", mode)}
	}
	return nil
}

// planAgainstSnapshot is plan --snapshot A --against B: what B's Services change on A's node.
func planAgainstSnapshot(cmd *cobra.Command, from *origin, out *output, against string) error {
	before, err := from.document(cmd)
	if err != nil {
		return err
	}
	after, err := (&origin{path: against}).document(cmd)
	if err != nil {
		return err
	}
	p, err := question.PreviewEdit().Answer(cmd.Context(), before, question.EditOf(after))
	if err != nil {
		return err
	}
	p.Problems = nil // of B: status --snapshot B has them
	if err := out.print(cmd, report{document: p, text: func(s *screen) { writePreview(s, &p) }}); err != nil || !p.Pending() {
		return err
	}
	return differsError("the snapshots differ")
}

// planAgainstRunning is plan --against-running.
func planAgainstRunning(cmd *cobra.Command, flags *configFlags, out *output, prune bool) error {
	c, notes, err := flags.config(needManifests)
	if err != nil {
		return err
	}
	printNotes(cmd, notes)
	return previewManifests(cmd, out, c.Manifests, c.NodePortRange, prune)
}

// previewManifests asks a running tandem what manifests would change.
func previewManifests(cmd *cobra.Command, out *output, path string, nodePorts config.PortRange, prune bool) error {
	found, err := manifests.ReadAsApplied(cmd.Context(), path, nodePorts)
	if err != nil {
		return err
	}
	problems := manifests.Models(found.Problems)
	printNotes(cmd, problems)
	if prune && len(problems) > 0 {
		return fmt.Errorf("%d manifests were rejected, see above: --prune would delete what they describe", len(problems))
	}
	brought := 0
	if len(problems) > 0 {
		running, err := platform.Status(cmd.Context(), question.Filter{})
		if err != nil {
			return err
		}
		brought = question.Brought(problems, &running)
	}
	p, err := platform.Ask(cmd.Context(), question.PreviewEdit(), question.Edit{
		Objects: found.Objects, Prune: prune, Unassigned: found.Unassigned, NodePorts: nodePorts,
	})
	if err != nil {
		return err
	}
	if err := out.print(cmd, report{document: p, text: func(s *screen) { writePreview(s, &p) }}); err != nil {
		return err
	}
	return previewError(brought, p)
}

// previewError is the error of a preview: problems that the manifests bring take precedence over changes.
func previewError(manifestProblems int, p question.Preview) error {
	if err := problemsError(manifestProblems + len(p.Problems)); err != nil || !p.Pending() {
		return err
	}
	return differsError("the manifests would change the data plane")
}

// writePreview shows a preview to people.
func writePreview(s *screen, p *question.Preview) {
	total := question.PreviewService{}
	for _, svc := range p.Services {
		s.printf("%s: %s added, %d changed, %d deleted; %s, of which %d lose their frontend or endpoint\n",
			printable.Text(svc.Name), printable.Count(svc.Added, "object"), svc.Changed, svc.Deleted, printable.Count(svc.Connections, "connection"), svc.Moved)
		const more = "    and %d more (-o json)"
		first(s, svc.Changes, listed, more, func(text string) { s.printf("    %s\n", printable.Text(text)) })
		first(s, svc.Objects, listed, more, func(o dataplane.Change) {
			s.printf("  %s %s\n", map[ledger.Verb]string{ledger.Create: "+", ledger.Replace: "~", ledger.Delete: "-"}[o.Verb], printable.Text(o.Object))
		})
		total.Added, total.Changed, total.Deleted = total.Added+svc.Added, total.Changed+svc.Changed, total.Deleted+svc.Deleted
		total.Connections, total.Moved = total.Connections+svc.Connections, total.Moved+svc.Moved
	}
	first(s, p.Assumed, listed, "! and %d more (-o json)", func(text string) { s.printf("! %s\n", printable.Text(text)) })
	for _, x := range p.Problems {
		writeProblem(s, x, x.Object)
	}
	if p.Unknown != "" {
		s.printf("! connections were not counted: %s\n", printable.Text(p.Unknown))
	}
	if !p.Pending() {
		s.printf("no change on %s, mode %s\n", p.Node, p.Mode)
	} else {
		s.printf("on %s, mode %s: %s, %s added, %d changed, %d deleted; %s, of which %d lose their frontend or endpoint\n",
			p.Node, p.Mode, printable.Count(len(p.Services), "Service"), printable.Count(total.Added, "object"), total.Changed, total.Deleted,
			printable.Count(total.Connections, "connection"), total.Moved)
	}
}

// planReport is the plan of the Services of a filter; native is always all of it.
func planReport(of *question.Document, only *filter) report {
	d := question.PlanOf(of, only.Filter)
	return report{
		document: d,
		text:     func(s *screen) { s.table(planTable(&d)) },
		own: map[string]func(io.Writer) error{
			"summary": func(out io.Writer) error { return writePlan(out, of, &d) },
			"native":  func(out io.Writer) error { _, err := io.WriteString(out, of.Plan.Native); return err },
		},
	}
}

// planTable has a row for each action of each frontend.
func planTable(d *question.Plan) table {
	t := table{columns: []column{
		{name: "SERVICE"}, {name: "FRONTEND", keep: true}, {name: "KIND", spare: true}, {name: "FROM"}, {name: "ACTION"}, {name: "SOURCES", spare: true}, {name: "WHY", wide: true},
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
				t.add(name, at, kind, a.From, actionOf(a), sources, a.Why)
				name, at, kind, sources = "", "", "", ""
			}
		}
	}
	return t
}

// writePlan prints each frontend with the action for its clients, and why.
func writePlan(out io.Writer, of *question.Document, d *question.Plan) error {
	for _, s := range d.Services {
		fmt.Fprintf(out, "%s", printable.Text(s.Name))
		if s.HealthCheckNodePort != 0 {
			fmt.Fprintf(out, ", health checks on port %d", s.HealthCheckNodePort)
		}
		fmt.Fprintln(out)
		for _, f := range s.Fronts {
			fmt.Fprintf(out, "  %s/%s  %s%s\n", f.Address, f.Protocol, f.Kind, conditionsOf(&f))
			for _, g := range f.Gaps {
				fmt.Fprintf(out, "    ! %s\n", printable.Text(g))
			}
			for _, a := range f.Answers {
				fmt.Fprintf(out, "    from %-19s %s\n", a.From, actionOf(a)+" ("+a.Why+")")
			}
		}
	}
	for _, text := range d.Shared {
		fmt.Fprintf(out, "! %s\n", printable.Text(text))
	}
	_, err := fmt.Fprintf(out, "plan: %s, %s, %s in mode %s for node %s\n",
		printable.Count(len(of.Services), "Service"), printable.Count(len(of.Ports()), "port"), printable.Count(of.Plan.Objects, "object"), of.Facts.Mode, printable.Text(of.Host.Name))
	return err
}

// conditionsOf are what else is to be known of a frontend.
func conditionsOf(f *question.PlanFrontend) string {
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

// actionOf describes the fate of a connection.
func actionOf(a question.PlanAction) string {
	s := a.Verdict
	if len(a.Endpoints) > 0 {
		s += " " + printable.List(a.Endpoints, question.Shown)
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
func selectPart(d *question.Document, name string) error {
	if name == "" {
		return nil
	}
	var names []string
	for _, p := range nativeParts(config.Mode(d.Facts.Mode), d.Plan.Native) {
		if p.name == name {
			d.Plan.Native = p.text
			return nil
		}
		names = append(names, p.name)
	}
	return usageError{fmt.Errorf("--part %s: mode %s has %s", name, d.Facts.Mode, strings.Join(names, ", "))}
}
