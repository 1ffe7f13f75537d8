// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/platform/connectivity"
)

// disruptFlags are those of tandem test disrupt.
type disruptFlags struct {
	rigFlags
	load     connectivity.Load
	switchTo string
	during   string
	out      output
}

func newTestDisrupt() *cobra.Command {
	var f disruptFlags
	c := &cobra.Command{
		Use:   "disrupt [-- FLAGS OF RUN]",
		Short: "Hold connections and make new ones while the proxy is restarted, upgraded or switched, and count what breaks",
		Long: `disrupt makes backends and clients as test connectivity does, holds TCP and UDP
connections to a Service and makes new ones all the time, while something is done to the
proxy: it is restarted, another program takes its place, it changes its mode, or a
command runs. It counts which connections failed, were reset or slow, and says when. A
held TCP connection must stay with its endpoint; UDP flows may move.

Without --restart, --upgrade, --switch and --during it goes on for --for, or until an
interrupt: disturb the proxy yourself meanwhile. The proxy that is tested is one in
namespaces of its own or, with --running FOLDER, the one that runs here: see test
connectivity.

A userspace proxy relays connections itself: those that it holds end with its process. So
do datagrams: of new connections only those over TCP wait for the next process.

The exit code is 0 when nothing broke, 3 when something did.`,
		Example: `  tandem test disrupt --restart --proxy-mode nftables
  tandem test disrupt --switch iptables --rate 500 --hold 1000
  tandem test disrupt --running /etc/tandem/services --during 'systemctl restart tandem'`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(c)
	fs := c.Flags()
	fs.IntVar(&f.load.Rate, "rate", 200, fmt.Sprintf("new connections a second, at most %d", connectivity.MaxRate))
	fs.IntVar(&f.load.Held, "hold", 100, fmt.Sprintf("connections to hold, at most %d", connectivity.MaxHeld))
	fs.DurationVar(&f.load.Slow, "slow", time.Second, "a new connection that takes longer counts as slow")
	fs.DurationVar(&f.load.For, "for", 5*time.Second, fmt.Sprintf("minimum duration, up to %s", connectivity.MaxTime))
	fs.BoolVar(&f.load.Restart, "restart", false, "stop the test's own proxy and start it again")
	fs.StringVar(&f.load.Upgrade, "upgrade", "", "stop the test's own proxy and start this program instead")
	fs.StringVar(&f.switchTo, "switch", "", "change the mode")
	complete(c, "switch", platform.Names()[1:]...)
	fs.StringVar(&f.during, "during", "", "run this command of the shell on the node")
	f.out.register(c)
	return c
}

func (f *disruptFlags) run(cmd *cobra.Command, args []string) error {
	options, err := f.options(cmd, args)
	if err != nil {
		return err
	}
	done := 0
	for _, name := range []string{"restart", "upgrade", "switch", "during"} {
		if cmd.Flags().Changed(name) {
			done++
		}
	}
	switch l := f.load; {
	case done > 1:
		return usageError{errors.New("--restart, --upgrade, --switch, --during: choose one")}
	case l.Rate < 1 || l.Rate > connectivity.MaxRate:
		return usageError{fmt.Errorf("--rate %d: must be from 1 to %d", l.Rate, connectivity.MaxRate)}
	case l.Held < 0 || l.Held > connectivity.MaxHeld:
		return usageError{fmt.Errorf("--hold %d: must be from 0 to %d", l.Held, connectivity.MaxHeld)}
	case l.For < 0 || l.For > connectivity.MaxTime:
		return usageError{fmt.Errorf("--for %s: must be at most %s", l.For, connectivity.MaxTime)}
	case f.folder != "" && (l.Restart || l.Upgrade != ""):
		return usageError{errors.New("--restart and --upgrade are for a proxy that the test starts; the running one is restarted by --during COMMAND")}
	}
	if f.switchTo != "" {
		f.load.Switch = config.Mode(f.switchTo)
		if _, err := platform.Find(f.load.Switch); err != nil || f.load.Switch == config.Auto {
			return usageError{fmt.Errorf("--switch %q: must be one of %v", f.switchTo, platform.Names()[1:])}
		}
	}
	if f.during != "" {
		f.load.Command = []string{"sh", "-c", f.during}
	}
	return f.made(cmd, options)
}

// print prints a result, and is its exit code.
func (f *disruptFlags) print(cmd *cobra.Command, d connectivity.Disruption) error {
	if err := f.out.print(cmd, report{document: d, text: func(s *screen) error { writeDisruption(s, d); return nil }}); err != nil {
		return err
	}
	if n := d.Broken(); n > 0 {
		return differsError(printable.Count(n, "connection") + " broke")
	}
	return nil
}

// writeDisruption shows a result to people.
func writeDisruption(s *screen, d connectivity.Disruption) {
	s.printf("mode %s on %s, %.1f s\n", d.Mode, d.Node, d.Seconds)
	for _, x := range d.Disturbances {
		s.printf("at %.1f s: %s, took %.1f s", x.Second, x.What, x.Seconds)
		if x.Error != "" {
			s.printf(": %s", x.Error)
		}
		s.printf("\n")
	}
	s.printf("\n")
	t := table{columns: []column{
		{name: "CONNECTIONS", keep: true}, {name: "MADE"}, {name: "FAILED"}, {name: "RESET"}, {name: "SLOW"}, {name: "P50"}, {name: "P99"}, {name: "MAX"},
	}}
	moved := ""
	for _, n := range d.New {
		ms := func(x float64) string { return short(time.Duration(x * float64(time.Millisecond))) }
		t.add("new, "+n.Protocol, fmt.Sprint(n.Made), fmt.Sprint(n.Failed), fmt.Sprint(n.Reset), fmt.Sprint(n.Slow), ms(n.P50), ms(n.P99), ms(n.Max))
	}
	for _, h := range d.Held {
		t.add("held, "+h.Protocol, fmt.Sprint(h.Held), fmt.Sprint(h.Broken), "-", "-", "-", "-", "-")
		if h.Moved > 0 {
			moved = fmt.Sprintf("%d held UDP flows were moved to another endpoint and went on\n", h.Moved)
		}
	}
	s.table(t)
	s.printf("%s", moved)
	const listed = 10
	for i, x := range d.Failures {
		if i == listed && !s.wide {
			s.printf("and more (-o wide)\n")
			break
		}
		s.printf("! at %.2f s: %s connection from %s to %s/%s: %s\n", x.Second, x.Kind, x.From, x.To, x.Protocol, x.What)
	}
}
