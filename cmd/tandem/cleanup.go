// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
)

func newCleanup() *cobra.Command {
	var flags configFlags
	var out output
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that tandem programmed on this machine, and nothing else",
		Long: `cleanup removes what tandem has programmed in any mode, by this configuration or
an earlier one. Pass the flags or the file of run if they protect objects of other
programs (ipvs.excludeCIDRs). Tables of iptables-nft that held tandem's rules and are
empty afterwards are deleted, too: iptables creates them again on demand. Those of
iptables-legacy belong to the kernel.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, notes, err := flags.config()
			printNotes(cmd, notes)
			if err != nil {
				return err
			}
			return cleanupLocked(cmd, c, &out)
		},
	}
	out.register(c)
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
	return errors.Join(out.print(cmd, report{document: d, text: func(s *screen) error { writeCleanup(s, d); return nil }}), failed)
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
	for _, r := range platform.RemoveAll(ctx, c, modes) {
		m := cleanupMode{Mode: r.Mode, Clean: r.Err == nil}
		switch {
		case r.Absent != nil:
			m.Clean, m.Absent = true, r.Absent.Error()
		case r.Err != nil:
			m.Failed = r.Err.Error()
			failed = append(failed, fmt.Errorf("mode %s: %w", r.Mode, r.Err))
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
