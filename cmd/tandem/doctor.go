// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/windows/hns"
)

func newDoctor() *cobra.Command {
	config := config.Default()
	address := config.HTTPAddress
	var out output
	var bundle string
	var redact bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine: which modes work, and what prevents Services from working",
		Long: `doctor probes each mode, and checks the system, rules of kube-proxy and other
programs, the running tandem, and the addresses that it listens on. It makes no
lasting change: modes are probed with temporary tables, chains and virtual servers
that no packet meets, for which the kernel may load modules. Each check has a stable
id, and states what to do. The exit code is 1 when a check fails.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := platform.Examine(cmd.Context(), &config, askRunning(cmd, address))
			err := out.print(cmd, report{document: checks, text: func(s *screen) { writeChecks(s, checks) }})
			if err == nil && bundle != "" {
				err = writeBundle(cmd, bundle, checks, redact)
			}
			if err == nil && diagnosis.Worst(checks) == diagnosis.Fail {
				err = errors.New("a check failed")
			}
			return err
		},
	}
	c.Flags().StringVar((*string)(&config.Mode), "proxy-mode", string(config.Mode), "the mode to check for: "+strings.Join(platform.Names(), " or "))
	c.Flags().StringVar(&address, "address", address, "where the running tandem serves its status")
	complete(c, "proxy-mode", platform.Names()...)
	c.Flags().StringVar(&bundle, "bundle", "", "also write a snapshot of the running tandem to this new file, with the checks, for a bug report")
	c.Flags().BoolVar(&redact, "redact", false, "with --bundle: replace names and addresses, and remove free text")
	out.register(c)
	return c
}

// writeBundle writes a snapshot with checks to a file that is not there yet.
func writeBundle(cmd *cobra.Command, path string, checks []diagnosis.Check, redact bool) error {
	f, err := takeSnapshot(cmd)
	if err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	f.Checks = checks
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	if redact {
		err = writeRedacted(file, f, "")
	} else {
		err = snapshot.Write(file, f)
	}
	return errors.Join(err, file.Close())
}

// writeChecks shows checks to people, one a paragraph.
func writeChecks(s *screen, checks []diagnosis.Check) {
	const margin = "                             "
	indent := func(text string) string { return strings.ReplaceAll(text, "\n", "\n"+margin) }
	for _, c := range checks {
		s.text.WriteString(s.paint(stateColor(string(c.Level)), fmt.Sprintf("%-5s", strings.ToUpper(string(c.Level)))))
		s.printf(" %-22s %s\n", c.ID, indent(c.Found))
		if c.Fix != "" {
			s.printf("%sfix: %s\n", margin, indent(c.Fix))
		}
	}
}

// askRunning requests the status of the tandem that runs here; nil where none answers.
func askRunning(cmd *cobra.Command, address string) *diagnosis.Running {
	doc, err := fetchStatus(cmd, address, &question.Filter{})
	if err != nil {
		return nil
	}
	return doc.Running()
}

func newCleanup() *cobra.Command {
	var flags configFlags
	var out output
	var hold bool
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that tandem programmed on this machine, and nothing else",
		Long: `cleanup removes what tandem has programmed in any mode, by this configuration or
an earlier one. Pass the flags or the file of run if they protect objects of other
programs (ipvs.excludeCIDRs). Tables of iptables-nft that held tandem's rules and are
empty afterwards are deleted, too: iptables creates them again on demand. Those of
iptables-legacy belong to the kernel.

Kernel parameters stay as they were set, since others may rely on them by now: in all
modes net.netfilter.nf_conntrack_max with the hashsize of nf_conntrack,
nf_conntrack_tcp_timeout_established, nf_conntrack_tcp_timeout_close_wait and what else of
conntrack the configuration names; in mode ipvs net.ipv4.ip_forward, those of net.ipv4.vs,
and with strict ARP net.ipv4.conf.all.arp_ignore and arp_announce.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, notes, err := flags.config()
			printNotes(cmd, notes)
			if err != nil {
				return err
			}
			err = cleanupLocked(cmd, c, &out)
			if hold && err == nil {
				<-cmd.Context().Done()
			}
			return err
		},
	}
	out.register(c)
	c.Flags().BoolVar(&hold, "hold", false, "wait until interrupted when all is removed, for a pod that must not end")
	flags.register(c, "config", "ipvs-exclude-cidrs")
	return c
}

// cleanupLocked cleans up while no tandem runs: a running one would program it
// again.
func cleanupLocked(cmd *cobra.Command, c *config.Config, out *output) (err error) {
	lock, err := platform.Lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	d, failed := cleanup(cmd.Context(), c, platform.Local())
	return errors.Join(out.print(cmd, report{document: d, text: func(s *screen) { writeCleanup(s, d) }}), failed)
}

// cleanupDocument is what became of the objects of each mode.
type cleanupDocument struct {
	Modes []cleanupMode `json:"modes"`
}

type cleanupMode struct {
	Mode   config.Mode `json:"mode"`
	Clean  bool        `json:"clean"`            // nothing of tandem is left
	Absent string      `json:"absent,omitempty"` // why there was nothing to remove
	Failed string      `json:"failed,omitempty"`
}

// cleanup removes what each of the modes has programmed. One that fails does not stop
// the others.
func cleanup(ctx context.Context, c *config.Config, modes []dataplane.Mode) (d cleanupDocument, err error) {
	var failed []error
	d.Modes = []cleanupMode{}
	for _, mode := range modes {
		m := cleanupMode{Mode: mode.Name, Clean: true}
		switch err := mode.Clear(ctx, c); {
		case errors.Is(err, dataplane.ErrAbsent):
			m.Absent = err.Error()
		case err != nil:
			m.Clean, m.Failed = false, err.Error()
			failed = append(failed, fmt.Errorf("mode %s: %w", m.Mode, err))
		}
		d.Modes = append(d.Modes, m)
	}
	return d, errors.Join(failed...)
}

// writeCleanup shows people what was removed; what failed is the error of the command.
func writeCleanup(s *screen, d cleanupDocument) {
	if len(d.Modes) == 0 {
		s.printf("no mode works on this system: nothing to remove\n")
	}
	for _, m := range d.Modes {
		switch {
		case m.Absent != "":
			s.printf("%s: nothing to remove: %s\n", m.Mode, printable.Text(m.Absent))
		case m.Clean:
			s.printf("%s: nothing of tandem is left\n", m.Mode)
		}
	}
}

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
			return out.print(cmd, report{document: d, text: func(s *screen) { writeDump(s, d) }})
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
			printNotes(cmd, problems)
			if err != nil {
				return err
			}
			err = out.print(cmd, report{document: d, text: func(s *screen) { writeDiff(s, d) }})
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
