// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/platform"
)

func newDrift(k *cluster) *cobra.Command {
	var out output
	var watch, repair bool
	from := origin{cluster: k}
	c := &cobra.Command{
		Use:   "drift [NAMESPACE/SERVICE]",
		Short: "Show which objects in the kernel or HNS are not as the running tandem programmed them",
		Long: `drift makes the running tandem read its data plane back now, and shows each object
that other programs have changed: the desired and the actual content, its owner, when
that was found, and, where the system reports it, which programs have written since the
reading before. The running tandem repairs such objects by itself; --repair waits until
that is done. --watch continues and prints what is found.

The exit code is 3 when something was changed; with --repair it is 0 when that is
repaired.`,
		Example: "  tandem drift\n  tandem drift --watch\n  tandem drift --repair -o json",
		Args:    atMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := serviceArgument(args)
			if err != nil {
				return err
			}
			r := question.DriftRequest{Service: serviceText(name), Look: true}
			if watch {
				return watchDrift(cmd, &out, r)
			}
			d, err := ask(cmd, &from, question.FindDrift(), r)
			if err == nil && repair {
				d, err = awaitRepair(cmd.Context(), d, r)
			}
			if err != nil {
				return err
			}
			if err := out.print(cmd, driftReport(d)); err != nil || len(d.Now) == 0 || repair && d.Repaired() {
				return err
			}
			return errDiffers
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "keep running and print what is found, until interrupted")
	c.Flags().BoolVar(&repair, "repair", false, "wait until what was found is repaired")
	out.register(c)
	from.register(c, "watch", "repair")
	c.MarkFlagsMutuallyExclusive("watch", "repair")
	return c
}

// driftPause is the time between two questions.
const driftPause = time.Second

// repairTime is how long a repair is waited for.
const repairTime = 30 * time.Second

// awaitRepair asks until nothing is left to repair.
func awaitRepair(ctx context.Context, first question.Drift, r question.DriftRequest) (d question.Drift, err error) {
	ctx, cancel := context.WithTimeout(ctx, repairTime)
	defer cancel()
	r.Look = false
	r.Since = first.At
	for _, x := range first.Now {
		if x.FoundAt.Before(r.Since) {
			r.Since = x.FoundAt.Add(-time.Nanosecond)
		}
	}
	for d = first; !d.Repaired(); {
		if !sleep.For(ctx, 100*time.Millisecond) {
			return d, errors.New("not repaired after " + repairTime.String() + ": " + strings.Join(d.Errors, "; "))
		}
		if d, err = platform.Ask(ctx, question.FindDrift(), r); err != nil {
			return d, err
		}
	}
	return d, nil
}

// watchDrift prints the drift that the running tandem finds, after an initial audit.
func watchDrift(cmd *cobra.Command, out *output, r question.DriftRequest) error {
	for {
		d, err := platform.Ask(cmd.Context(), question.FindDrift(), r)
		if err != nil {
			return err
		}
		if r.Look || len(d.Now) > 0 {
			if err := showWatched(cmd, out, d); err != nil {
				return err
			}
		}
		r.Look, r.Since = false, d.At
		if !sleep.For(cmd.Context(), driftPause) {
			return nil // interrupted: --watch ends so
		}
	}
}

func showWatched(cmd *cobra.Command, out *output, d question.Drift) error {
	if out.form != formTable || len(d.Now) == 0 {
		return out.print(cmd, driftReport(d))
	}
	s := newScreen(cmd.OutOrStdout())
	for _, x := range d.Now {
		writeDriftedObject(s, x)
	}
	return s.flush()
}

func driftReport(d question.Drift) report {
	return report{document: d, text: func(s *screen) { writeDrift(s, &d) }}
}

// writeDrift shows drift to people.
func writeDrift(s *screen, d *question.Drift) {
	of := ""
	if d.Service != "" {
		of = " of Service " + printable.Text(d.Service)
	}
	switch {
	case len(d.Now) > 0:
		s.printf("%s of mode %s on %s drifted:\n", printable.Count(len(d.Now), "object"), d.Mode, d.Node)
	case d.Looked:
		s.printf("no drift%s: the data plane of mode %s on %s is as tandem programmed it%s\n", of, d.Mode, d.Node, readText(d))
	default:
		s.printf("no drift%s known in mode %s on %s\n", of, d.Mode, d.Node)
	}
	writeDrifted(s, d.Now, listed)
	for _, e := range d.Errors {
		s.printf("! cannot be repaired yet: %s\n", printable.Text(e))
	}
	if len(d.Before) > 0 {
		s.printf("\nrepaired before, %s since the start, the latest first:\n", printable.Count(d.Total, "object"))
		writeDrifted(s, d.Before, 5)
	}
}

// readText describes when the data plane was read; empty where that was just now.
func readText(d *question.Drift) string {
	if d.ReadAt == nil || d.At.Sub(*d.ReadAt) < time.Minute {
		return ""
	}
	return fmt.Sprintf(" (read %s ago; no other program has written since)", d.At.Sub(*d.ReadAt).Round(time.Second))
}

func writeDrifted(s *screen, all []question.Drifted, most int) {
	first(s, all, most, "and %d more (-o json)", func(x question.Drifted) { writeDriftedObject(s, x) })
}

func writeDriftedObject(s *screen, x question.Drifted) {
	more := ""
	if x.Service != "" {
		more = "  (Service " + printable.Text(x.Service) + ")"
	}
	writeDifference(s, x.Difference, more)
	s.printf("           found   %s%s\n", x.FoundAt.Format(time.RFC3339), repairedText(x))
	if len(x.By) > 0 {
		s.printf("           by      %s\n", writers(x.By, x.Incomplete))
	}
}

func repairedText(x question.Drifted) string {
	if x.RepairedAt == nil {
		return ", NOT repaired"
	}
	return fmt.Sprintf(", repaired after %s", max(x.RepairedAt.Sub(x.FoundAt), time.Millisecond).Round(time.Millisecond))
}

// writers lists programs, the latest last.
func writers(all []dataplane.Writer, incomplete bool) string {
	const most = 4
	var parts []string
	for _, w := range all[max(0, len(all)-most):] {
		parts = append(parts, fmt.Sprintf("%s (thread %d) at %s", printable.Text(w.Name), w.PID, w.At.Format("15:04:05")))
	}
	text := strings.Join(parts, ", ")
	if len(all) > 1 {
		text = "one of " + text
	}
	if incomplete {
		return "perhaps " + text + "; not all writers are known"
	}
	return text
}

func newSwitch() *cobra.Command {
	var to string
	var out output
	c := &cobra.Command{
		Use:   "switch --to MODE",
		Short: "Change the mode of the running tandem while its Services are in use",
		Long: `switch makes the running tandem program the other mode in parallel to the present
one, use it, and then remove the old one. New connections never fail. If the other
mode cannot program everything, or on an interrupt, nothing changes.

The configuration is not changed: set its mode too to keep the mode after a
restart.`,
		Example: "  tandem switch --to iptables",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := platform.Find(config.Mode(to)); err != nil || to == string(config.Auto) {
				return usageError{fmt.Errorf("--to %q: must be one of %s", to, strings.Join(platform.Names()[1:], ", "))}
			}
			done, err := platform.SwitchTo(cmd.Context(), config.Mode(to), func(phase string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s ...\n", printable.Text(phase))
			})
			if err != nil {
				return err
			}
			return out.print(cmd, report{document: done, text: func(s *screen) { writeSwitched(s, done) }})
		},
	}
	c.Flags().StringVar(&to, "to", "", "the mode to change to: "+strings.Join(platform.Names()[1:], " or "))
	complete(c, "to", platform.Names()[1:]...)
	out.register(c)
	return c
}

func writeSwitched(s *screen, done platform.Switched) {
	s.printf("switched from %s to %s in %s: %s\n", done.From, done.To, done.Took.Round(time.Millisecond), printable.Count(done.Objects, "object"))
	for _, gap := range done.Gaps {
		s.printf("  unsupported by %s: %s\n", done.To, printable.Text(gap))
	}
	if done.Draining {
		s.printf("%s has connections and drains; it is removed when they have ended\n", done.From)
	}
}
