package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// hnsPatience bounds a look at HNS and at the source of Services.
const hnsPatience = 2 * time.Minute

// openHNS gives access to an HNS: this machine's, or an emulated one.
type openHNS func() (hns.HNS, hns.Settings, error)

func newHNS(open openHNS) *cobra.Command {
	c := &cobra.Command{
		Use:   "hns",
		Short: "Show what HNS holds on a Windows node, and how it differs from what it should",
		Long: `hns reads the Host Networking Service and the journal of what is tandem's. It
changes nothing, and a tandem may be at work.`,
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
	var output string
	c := &cobra.Command{
		Use:     "dump",
		Short:   "List the endpoints and load balancers of the pods' network, and whose they are",
		Example: "  tandem hns dump\n  tandem hns dump --network-name cbr0 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := hnsConfig(cmd, &flags, output)
			if err != nil {
				return err
			}
			view, err := lookAtHNS(cmd.Context(), open, c)
			if err != nil {
				return err
			}
			d := view.Dump()
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), d)
			}
			return writeDump(cmd.OutOrStdout(), d)
		},
	}
	flags.register(c.Flags())
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

func newHNSDiff(open openHNS) *cobra.Command {
	var flags configFlags
	var output string
	c := &cobra.Command{
		Use:   "diff",
		Short: "Compare HNS and the journal with what Services need",
		Long: `diff reads Services from a folder of manifests or from the API server, as run
does, and compares what they need with what HNS and the journal hold. Give it the
flags that run has: they say what is needed. The exit code is 3 when something
differs.`,
		Example: "  tandem hns diff --kubeconfig C:\\k\\config --hostname-override win-1\n  tandem hns diff --manifests ./services -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := hnsConfig(cmd, &flags, output, needSource)
			if err != nil {
				return err
			}
			d, problems, err := diffHNS(cmd.Context(), open, c)
			tellProblems(cmd, problems)
			if err != nil {
				return err
			}
			write := writeDiff
			if output == "json" {
				write = func(out io.Writer, d hns.Diff) error { return writeJSON(out, d) }
			}
			if err := write(cmd.OutOrStdout(), d); err != nil || len(d.Changes) == 0 {
				return err
			}
			return errPending
		},
	}
	flags.register(c.Flags())
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

// hnsConfig returns the configuration, and says what of it has no effect.
func hnsConfig(cmd *cobra.Command, flags *configFlags, output string, needs ...need) (*config.Config, error) {
	if output != "table" && output != "json" {
		return nil, usageError{fmt.Errorf("-o %s: choose table or json", output)}
	}
	c, notes, err := flags.config(needs...)
	tellNotes(cmd, notes)
	return c, err
}

func lookAtHNS(ctx context.Context, open openHNS, c *config.Config) (*hns.View, error) {
	h, settings, err := open()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, hnsPatience)
	defer cancel()
	return hns.Look(ctx, h, c, settings)
}

// diffHNS returns also what is wrong with the Services: they may be what differs.
func diffHNS(ctx context.Context, open openHNS, c *config.Config) (hns.Diff, []model.Problem, error) {
	view, err := lookAtHNS(ctx, open, c)
	if err != nil {
		return hns.Diff{}, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, hnsPatience)
	defer cancel()
	in, err := readInputs(ctx, c)
	if err != nil {
		return hns.Diff{}, nil, err
	}
	node := ownNode(in.nodes, c.NodeName)
	host := resolve.Host(c, node, in.cidrs, in.machine)
	services, ports := track.Once(host, in.services, in.slices)
	problems := slices.Concat(in.problems, resolve.HostProblems(c, node, in.cidrs, in.machine))
	for _, s := range services {
		problems = append(problems, s.Problems...)
	}
	return view.Diff(host, ports), problems, nil
}

func writeDump(out io.Writer, d hns.Dump) error {
	fmt.Fprintf(out, "HNS %s, network %s (%s): %d load balancers without DSR\n", d.Version, status.Clean(d.Network), status.Clean(d.Type), d.WithoutDSR)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "OBJECT\tOWNER\tID\tDETAIL")
	for _, i := range d.Objects {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", i.Object, i.Owner, status.Clean(i.ID), status.Clean(i.Detail))
	}
	return w.Flush()
}

func writeDiff(out io.Writer, d hns.Diff) error {
	for _, c := range d.Changes {
		fmt.Fprintf(out, "%-7s  %s\n", c.State, status.Clean(c.Object))
		if c.Wanted != "" {
			fmt.Fprintf(out, "         wanted %s\n", c.Wanted)
		}
		if c.Found != "" {
			fmt.Fprintf(out, "         found  %s\n", status.Clean(c.Found))
		}
	}
	_, err := fmt.Fprintf(out, "diff: %d objects wanted, %d differences\n", d.Wanted, len(d.Changes))
	return err
}

// errPending says that something is not as it should be; what, is on the
// standard output.
var errPending = errors.New("what is there is not what is wanted")
