// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// document is what a verb prints: as JSON, or in a form for people.
type document interface{ Write(io.Writer) error }

// outputFlag adds -o.
func outputFlag(c *cobra.Command, to *string) {
	c.Flags().StringVarP(to, "output", "o", "table", "table or json")
}

func show(cmd *cobra.Command, output string, d document) error {
	switch output {
	case "table":
		return d.Write(cmd.OutOrStdout())
	case "json":
		return writeJSON(cmd.OutOrStdout(), d)
	}
	return usageError{fmt.Errorf("-o %s: choose table or json", output)}
}

// twoArgs accepts exactly FROM and TO.
func twoArgs(c *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usageError{fmt.Errorf("%s takes two arguments, FROM and TO, not %d", c.CommandPath(), len(args))}
	}
	return nil
}
