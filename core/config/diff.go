// SPDX-License-Identifier: Apache-2.0

package config

import "slices"

// Change is one setting with two values.
type Change struct {
	Name     string // of the field, or the flag with its dashes
	Old, New string
	Restart  string // why a running proxy cannot take it over; empty when it can
}

// Diff returns the differences between two configurations: those that a running
// proxy can apply, and those that need a restart. When the mode changes, all
// others wait for it, since some may belong to that mode. Settings without effect
// are left out.
func Diff(from, to *Config) (live, restart []Change) {
	publicFrom, publicTo := from.Public(), to.Public()
	for _, s := range Settings() {
		if s.Unused != "" || s.Deprecated != "" || s.Counts != nil && !s.Counts(to.Mode) {
			continue
		}
		before, after := s.Value(from), s.Value(to)
		if slices.Equal(before.Get(), after.Get()) {
			continue
		}
		c := Change{Name: s.Name(), Old: s.Value(publicFrom).String(), New: s.Value(publicTo).String(), Restart: s.Restart}
		if from.Mode != to.Mode {
			c.Restart = restartMode
		}
		if c.Restart == "" {
			live = append(live, c)
		} else {
			restart = append(restart, c)
		}
	}
	return live, restart
}

// Merge returns the configuration that a proxy runs with when it applies from
// another one what needs no restart. Neither argument is changed.
func Merge(running, next *Config) *Config {
	merged := *next
	if next.Mode != running.Mode {
		merged = *running
	}
	for _, s := range Settings() {
		if s.Restart != "" {
			s.Value(&merged).copyFrom(s.Value(running))
		}
	}
	return &merged
}
