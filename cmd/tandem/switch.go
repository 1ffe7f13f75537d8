// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
)

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
			return out.print(cmd, report{document: done, text: func(s *screen) error { writeSwitched(s, done); return nil }})
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
