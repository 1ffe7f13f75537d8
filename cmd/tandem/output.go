// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// writeJSON writes a document as -o json shows it.
func writeJSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(printable.JSON(b.Bytes()))
	return err
}

// printNotes prints the notes on a configuration, beside the result.
func printNotes(cmd *cobra.Command, notes []config.Finding) {
	for _, n := range notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "! %s\n", printable.Text(n.String()))
	}
}

// printProblems prints the problems of the inputs, beside the result.
func printProblems(cmd *cobra.Command, problems []model.Problem) {
	for _, p := range problems {
		fmt.Fprintf(cmd.ErrOrStderr(), "! %s\n", printable.Text(p.String()))
	}
}
