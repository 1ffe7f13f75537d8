// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/windows/contract"
)

// hnsTestTimeout bounds a run of experiments, but for deleting what it made.
const hnsTestTimeout = 30 * time.Minute

// hnsTest are the flags of tandem test hns.
type hnsTest struct {
	local   func() (contract.HNS, contract.Service, error)
	report  string
	adapter string
	overlay bool
	restart bool
	compare string
	out     output
}

func newTestHNS(local func() (contract.HNS, contract.Service, error)) *cobra.Command {
	f := &hnsTest{local: local}
	c := &cobra.Command{
		Use:    "hns",
		Hidden: runtime.GOOS != "windows", // but for --compare there is nothing to do
		Short:  "Check Tandem's assumptions about HNS on this machine, and write a report",
		Long: `hns makes networks, endpoints and load balancers of its own in the Host Networking
Service, asks in some 75 experiments how it behaves, deletes what it made, and writes a
report: for each rule that Tandem and the emulator of its tests rely on, whether HNS
keeps it, or what it answered instead. The report has the versions of Windows and of
HNS, codes and numbers; no name or address of this machine. Please send it in.

Run it as an administrator, best on a machine without containers that matter. It makes
a network of type NAT, named tandem-test-hns, with addresses of 198.18.0.0/15. With
--adapter it makes a network of type L2Bridge, too, with --overlay one of type Overlay:
that may interrupt the connections of the adapter for some seconds. --restart-hns
restarts the service of HNS, which interrupts all containers.

--compare FILE reads a report, on any system, and lists what differs from what this
Tandem expects: what the emulator must change.

The exit code is 0 if HNS answers as expected, 3 if anything differs, 1 if the run
ended early or something could not be deleted.`,
		Example: `  tandem test hns
  tandem test hns --report C:\hns.json --adapter Ethernet
  tandem test hns --compare tandem-hns.json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := c.Flags()
	fs.StringVar(&f.report, "report", "tandem-hns.json", "the file for the report")
	fs.StringVar(&f.adapter, "adapter", "", "a network adapter, such as Ethernet, for networks of type L2Bridge or Overlay")
	fs.BoolVar(&f.overlay, "overlay", false, "make a network of type Overlay on the adapter instead of L2Bridge")
	fs.BoolVar(&f.restart, "restart-hns", false, "restart the service of HNS, to ask what it remembers")
	fs.StringVar(&f.compare, "compare", "", "compare a report with what this tandem expects, and ask nothing")
	for _, flag := range []string{"report", "adapter", "overlay", "restart-hns"} {
		c.MarkFlagsMutuallyExclusive("compare", flag)
	}
	f.out.register(c)
	return c
}

func (f *hnsTest) run(cmd *cobra.Command) error {
	r, err := f.find(cmd)
	if err != nil {
		return err
	}
	if err := f.out.print(cmd, report{document: r, text: func(s *screen) { writeHNSTest(s, r) }}); err != nil {
		return err
	}
	differing := r.Count(contract.Different)
	switch {
	case r.Ended != "":
		return fmt.Errorf("the run ended early: %s", r.Ended)
	case len(r.Left) > 0:
		return errors.New("not everything could be deleted: run it again, after a restart of the service hns")
	case differing > 0:
		return differsError(printable.Count(differing, "answer") + " of HNS not as expected")
	}
	return nil
}

// find returns the report that is to be printed.
func (f *hnsTest) find(cmd *cobra.Command) (contract.Report, error) {
	if f.compare != "" {
		file, err := os.Open(f.compare)
		if err != nil {
			return contract.Report{}, err
		}
		defer file.Close()
		r, err := contract.Read(file)
		if err != nil {
			return r, fmt.Errorf("%s: %w", f.compare, err)
		}
		return contract.Compare(r)
	}
	if f.overlay && f.adapter == "" {
		return contract.Report{}, usageError{errors.New("--overlay needs --adapter")}
	}
	h, service, err := f.local()
	if err != nil {
		return contract.Report{}, err
	}
	o := contract.Options{Tandem: versionText(), Windows: contract.Windows(), Adapter: f.adapter, Overlay: f.overlay, Listen: contract.Listen}
	if f.restart {
		o.Service = service
	}
	o.Progress = func(x contract.Result) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s on %s: %s: %s\n", x.ID, x.Network, x.Verdict, x.Found)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), hnsTestTimeout)
	defer cancel()
	r, err := contract.Run(ctx, h, o)
	if err != nil {
		return r, err
	}
	file, err := os.Create(f.report)
	if err != nil {
		return r, err
	}
	return r, errors.Join(writeJSON(file, r), file.Close())
}

// writeHNSTest prints what differs and what was not asked; all when wide.
func writeHNSTest(s *screen, r contract.Report) {
	t := table{columns: []column{
		{name: "EXPERIMENT", keep: true},
		{name: "NETWORK"},
		{name: "SOURCE"},
		{name: "RESULT", keep: true, state: true},
		{name: "EXPECTED"},
		{name: "FOUND", keep: true},
	}}
	for _, x := range r.Results {
		if s.wide || x.Verdict == contract.Different {
			t.add(x.ID, x.Network, x.Source, string(x.Verdict), x.Expected, x.Found)
		}
	}
	if len(t.rows) > 0 {
		s.table(t)
		s.printf("\n")
	}
	if s.wide {
		times := table{columns: []column{{name: "FUNCTION"}, {name: "CALLS"}, {name: "MEDIAN MS"}, {name: "MAX MS"}}}
		for _, x := range r.Times {
			times.add(x.Function, fmt.Sprint(x.Calls), fmt.Sprint(x.Median), fmt.Sprint(x.Max))
		}
		s.table(times)
		s.printf("\n")
	}
	for _, left := range r.Left {
		s.printf("not deleted: %s\n", left)
	}
	s.printf("Windows %s, HNS %s: %d as expected, %d different, %d not run; %s\n", r.Windows, r.HNS,
		r.Count(contract.Expected), r.Count(contract.Different), r.Count(contract.NotRun), printable.Count(r.Calls, "call"))
}
