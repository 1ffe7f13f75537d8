package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/platform"
)

func newCleanup() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that tandem programmed on this machine, and nothing else",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := config.Default()
			var failed []error
			for _, mode := range platform.Modes() {
				backend, err := mode.Open(&c)
				if err == nil {
					err = errors.Join(backend.Remove(cmd.Context()), backend.Close())
				}
				if err != nil {
					failed = append(failed, fmt.Errorf("mode %s: %w", mode.Name, err))
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: nothing of tandem is left\n", mode.Name)
			}
			return errors.Join(failed...)
		},
	}
}
