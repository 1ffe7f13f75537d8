package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/platform"
)

func newCleanup() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that tandem programmed on this machine, and nothing else",
		RunE:  func(cmd *cobra.Command, _ []string) error { return cleanupLocked(cmd) },
	}
}

// cleanupLocked cleans up while no tandem runs: one that does would put back
// what is removed.
func cleanupLocked(cmd *cobra.Command) (err error) {
	lock, err := platform.Lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	return cleanup(cmd.Context(), cmd.OutOrStdout(), platform.Local())
}

// cleanup removes what each of the modes left behind. One that fails keeps none
// of the others from it.
func cleanup(ctx context.Context, out io.Writer, modes []dataplane.Mode) error {
	if len(modes) == 0 {
		fmt.Fprintln(out, "no mode of tandem works on this system: there is nothing to remove")
	}
	c := config.Default()
	var failed []error
	for _, r := range platform.RemoveAll(ctx, &c, modes) {
		switch {
		case r.Absent != nil:
			fmt.Fprintf(out, "%s: nothing to remove: %v\n", r.Mode, r.Absent)
		case r.Err != nil:
			failed = append(failed, fmt.Errorf("mode %s: %w", r.Mode, r.Err))
		default:
			fmt.Fprintf(out, "%s: nothing of tandem is left\n", r.Mode)
		}
	}
	return errors.Join(failed...)
}
