// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/status"
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
func previewError(manifestProblems int, p status.Preview) error {
	if err := problemsError(manifestProblems + len(p.Problems)); err != nil || !p.Pending() {
		return err
	}
	return differsError("the manifests would change the data plane")
}
