// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// hnsTimeout bounds reading HNS and the source of Services.
const hnsTimeout = 2 * time.Minute

// openHNS gives access to an HNS: this machine's, or an emulated one.
type openHNS func() (hns.HNS, hns.Settings, error)

func newHNS(open openHNS) *cobra.Command {
	c := &cobra.Command{
		Use:   "hns",
		Short: "Show what HNS holds on a Windows node, and how it differs from the desired state",
		Long: `hns reads the Host Networking Service and the journal of what tandem owns. It
changes nothing, and may be used while a tandem runs.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newHNSDump(open), newHNSDiff(open))
	for _, sub := range c.Commands() {
		sub.Args = noArgs
	}
	return c
}

func newHNSDump(open openHNS) *cobra.Command {
	var flags configFlags
	var out output
	c := &cobra.Command{
		Use:     "dump",
		Short:   "List the endpoints and load balancers of the pods' network, and their owners",
		Example: "  tandem hns dump\n  tandem hns dump --network-name cbr0 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := hnsConfig(cmd, &flags)
			if err != nil {
				return err
			}
			view, err := readHNS(cmd.Context(), open, c)
			if err != nil {
				return err
			}
			d := view.Dump()
			return out.print(cmd, report{document: d, text: func(s *screen) error { writeDump(s, d); return nil }})
		},
	}
	flags.register(c, "config", "network-name")
	out.register(c)
	return c
}

func newHNSDiff(open openHNS) *cobra.Command {
	var flags configFlags
	var out output
	c := &cobra.Command{
		Use:   "diff",
		Short: "Compare HNS and the journal with what Services need",
		Long: `diff reads Services from a folder of manifests or from the API server, as run
does, and compares the desired state with what HNS and the journal hold. Give it the
flags that run has. The exit code is 3 when something differs.`,
		Example: "  tandem hns diff --kubeconfig C:\\k\\config --hostname-override win-1\n  tandem hns diff --manifests ./services -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := hnsConfig(cmd, &flags, needSource)
			if err != nil {
				return err
			}
			d, problems, err := diffHNS(cmd.Context(), open, c)
			printProblems(cmd, problems)
			if err != nil {
				return err
			}
			err = out.print(cmd, report{document: d, text: func(s *screen) error { writeDiff(s, d); return nil }})
			if err == nil && len(d.Changes) > 0 {
				err = differsError("HNS differs from desired state")
			}
			return err
		},
	}
	flags.register(c)
	out.register(c)
	return c
}

// hnsConfig returns the configuration, and prints the notes on it.
func hnsConfig(cmd *cobra.Command, flags *configFlags, needs ...need) (*config.Config, error) {
	c, notes, err := flags.config(needs...)
	printNotes(cmd, notes)
	return c, err
}

func readHNS(ctx context.Context, open openHNS, c *config.Config) (*hns.View, error) {
	h, settings, err := open()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, hnsTimeout)
	defer cancel()
	return hns.Look(ctx, h, c, settings)
}

// diffHNS also returns the problems of Services, which may explain differences.
func diffHNS(ctx context.Context, open openHNS, c *config.Config) (hns.Diff, []model.Problem, error) {
	view, err := readHNS(ctx, open, c)
	if err != nil {
		return hns.Diff{}, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, hnsTimeout)
	defer cancel()
	in, err := readInputs(ctx, c)
	if err != nil {
		return hns.Diff{}, nil, err
	}
	node := ownNode(in.Nodes, c.NodeName)
	host := resolve.Host(c, node, in.ServiceCIDRs, in.machine)
	services, ports := track.Once(host, &in.Objects)
	problems := slices.Concat(in.problems, resolve.HostProblems(c, node, in.ServiceCIDRs, in.machine, resolve.AnyNodePort(in.Services)))
	for _, s := range services {
		problems = append(problems, s.Problems...)
	}
	return view.Diff(host, ports), problems, nil
}

func writeDump(s *screen, d hns.Dump) {
	s.printf("HNS %s, network %s (%s): %d load balancers without DSR\n", d.Version, printable.Text(d.Network), printable.Text(d.Type), d.WithoutDSR)
	t := table{columns: []column{{name: "OBJECT"}, {name: "OWNER", state: true}, {name: "ID", keep: true}, {name: "DETAIL"}}}
	for _, i := range d.Objects {
		t.add(i.Object, i.Owner, i.ID, i.Detail)
	}
	s.table(t)
}

func writeDiff(s *screen, d hns.Diff) {
	for _, c := range d.Changes {
		s.printf("%-7s  %s\n", c.State, printable.Text(c.Object))
		if c.Wanted != "" {
			s.printf("         wanted %s\n", printable.Text(c.Wanted))
		}
		if c.Found != "" {
			s.printf("         found  %s\n", printable.Text(c.Found))
		}
	}
	s.printf("diff: %s wanted, %s\n", printable.Count(d.Wanted, "object"), printable.Count(len(d.Changes), "difference"))
}
