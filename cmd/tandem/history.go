// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/platform"
)

func newHistory() *cobra.Command {
	var f history.Filter
	var output string
	c := &cobra.Command{
		Use:   "history [NAMESPACE/NAME]",
		Short: "Show the last changes: what came, what it rewrote, how long each stage took",
		Long: `history shows the last changes that reached the running tandem, oldest first: the
object and its resourceVersion; how old the change was when it arrived; how long it
queued, and how long it took to resolve, compile and write it; what was created (+),
replaced (~) and deleted (-) in the data plane; and what failed. Changes that were
applied together share a sync. The last ` + fmt.Sprint(history.Most) + ` changes are kept, in memory only.`,
		Example: "  tandem history\n  tandem history default/web\n  tandem history --failed -o json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("-o %s: choose table or json", output)}
			}
			if len(args) == 1 {
				if f.Service, err = serviceName(args[0]); err != nil {
					return err
				}
			}
			if f.Limit < 0 {
				return usageError{fmt.Errorf("--limit %d: must not be negative", f.Limit)}
			}
			d, err := platform.History(cmd.Context(), f)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), d)
			}
			return d.Write(cmd.OutOrStdout())
		},
	}
	c.Flags().IntVar(&f.Limit, "limit", 50, "show the newest so many changes; 0 for all")
	c.Flags().BoolVar(&f.Failed, "failed", false, "only changes whose sync failed in part")
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

// serviceName reads NAMESPACE/NAME; without a namespace it is default.
func serviceName(text string) (n model.ServiceName, err error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		namespace, name = "default", text
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return n, usageError{fmt.Errorf("%q is not NAMESPACE/NAME", text)}
	}
	return model.ServiceName{Namespace: namespace, Name: name}, nil
}
