// SPDX-License-Identifier: Apache-2.0

package status

import (
	"path"
	"slices"
	"strings"
)

// Filter selects Services by namespace, name and state; the zero value selects all.
type Filter struct {
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"` // with * and ? as in file names
	States    []string `json:"states,omitempty"`
}

// Check reports what is wrong with the pattern.
func (f *Filter) Check() error {
	_, err := path.Match(f.Name, "")
	return err
}

// All reports whether nothing is left out.
func (f *Filter) All() bool { return f.Namespace == "" && f.Name == "" && len(f.States) == 0 }

// Named reports whether an object "namespace/name" is selected, if its state is.
func (f *Filter) Named(object string) bool {
	namespace, name, _ := strings.Cut(object, "/")
	if f.Namespace != "" && f.Namespace != namespace {
		return false
	}
	ok, _ := path.Match(f.Name, name)
	return f.Name == "" || ok
}

// Match reports whether an object "namespace/name" in a state is selected. A state
// that a verb does not have is empty.
func (f *Filter) Match(object, state string) bool {
	return f.Named(object) && (len(f.States) == 0 || slices.ContainsFunc(f.States, func(s string) bool { return strings.EqualFold(s, state) }))
}
