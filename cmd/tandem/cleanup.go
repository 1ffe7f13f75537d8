// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
)

func newCleanup() *cobra.Command {
	var flags configFlags
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
			return cleanupLocked(cmd, c)
		},
	}
	flags.register(c, "config", "ipvs-exclude-cidrs")
	return c
}

// cleanupLocked cleans up while no tandem runs: a running one would program it
// again.
func cleanupLocked(cmd *cobra.Command, c *config.Config) (err error) {
	lock, err := platform.Lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	return cleanup(cmd.Context(), cmd.OutOrStdout(), c, platform.Local())
}

// cleanup removes what each of the modes has programmed. One that fails does not stop
// the others.
func cleanup(ctx context.Context, out io.Writer, c *config.Config, modes []dataplane.Mode) error {
	if len(modes) == 0 {
		fmt.Fprintln(out, "no mode works on this system: nothing to remove")
	}
	var failed []error
	for _, r := range platform.RemoveAll(ctx, c, modes) {
		switch {
		case r.Absent != nil:
			fmt.Fprintf(out, "%s: nothing to remove: %s\n", r.Mode, printable.Text(r.Absent.Error()))
		case r.Err != nil:
			failed = append(failed, fmt.Errorf("mode %s: %w", r.Mode, r.Err))
		default:
			fmt.Fprintf(out, "%s: nothing of tandem is left\n", r.Mode)
		}
	}
	return errors.Join(failed...)
}
