// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// filter selects objects by namespace, name and state.
type filter struct {
	namespace string
	name      string // with * and ? as in file names
	states    []string
}

// register adds the flags -n, --name and, for a verb whose objects have states, --state.
func (f *filter) register(c *cobra.Command, states ...string) {
	fs := c.Flags()
	fs.StringVarP(&f.namespace, "namespace", "n", "", "only this namespace")
	fs.StringVar(&f.name, "name", "", "only these names; * and ? as in file names: 'web-*'")
	if len(states) > 0 {
		fs.StringSliceVar(&f.states, "state", nil, "only these states: "+strings.Join(states, ", "))
		complete(c, "state", states...)
	}
}

// check says what is wrong with the pattern.
func (f *filter) check() error {
	if _, err := path.Match(f.name, ""); err != nil {
		return usageError{err}
	}
	return nil
}

// all reports whether nothing is left out.
func (f *filter) all() bool { return f.namespace == "" && f.name == "" && len(f.states) == 0 }

// match reports whether an object "namespace/name" in a state is selected. A state
// that a verb does not have is empty.
func (f *filter) match(object, state string) bool {
	namespace, name, _ := strings.Cut(object, "/")
	if f.namespace != "" && f.namespace != namespace {
		return false
	}
	if ok, _ := path.Match(f.name, name); f.name != "" && !ok {
		return false
	}
	return len(f.states) == 0 || slices.ContainsFunc(f.states, func(s string) bool { return strings.EqualFold(s, state) })
}
