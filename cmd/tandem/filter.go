// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/status"
)

// filter is a status.Filter by flags.
type filter struct{ status.Filter }

// register adds the flags -n, --name and, for a verb whose objects have states, --state.
func (f *filter) register(c *cobra.Command, states ...string) {
	fs := c.Flags()
	fs.StringVarP(&f.Namespace, "namespace", "n", "", "only this namespace")
	fs.StringVar(&f.Name, "name", "", "only these names; * and ? as in file names: 'web-*'")
	if len(states) > 0 {
		fs.StringSliceVar(&f.States, "state", nil, "only these states: "+strings.Join(states, ", "))
		complete(c, "state", states...)
	}
}

// check validates the pattern.
func (f *filter) check() error {
	if err := f.Check(); err != nil {
		return usageError{err}
	}
	return nil
}
