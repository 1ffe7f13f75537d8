// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
)

// Help of verbs that take the flags of run: run shows them by subject, the others show
// their own flags and the few of run's that they are mostly called with.

// mostUsed are flags of run that are shown with every verb that takes them.
func mostUsed() []string {
	return []string{"config", "manifests", "kubeconfig", "hostname-override", "proxy-mode", "cluster-cidr"}
}

// groupedHelp shows the flags of run under the subjects of their settings.
func groupedHelp(c *cobra.Command) {
	c.SetUsageFunc(func(c *cobra.Command) error {
		s := newScreen(c.OutOrStdout())
		s.printf("Usage:\n  %s\n\nExamples:\n%s\n", c.UseLine(), c.Example)
		rest := pflag.NewFlagSet("", pflag.ContinueOnError)
		seen := map[string]bool{}
		for _, g := range config.Groups() {
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			for _, set := range g.Settings {
				if f := c.Flags().Lookup(set.Flag); f != nil && set.Flag != "" && !seen[set.Flag] {
					seen[set.Flag] = true
					fs.AddFlag(f)
				}
			}
			s.flags(g.Title, fs)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !seen[f.Name] {
				rest.AddFlag(f)
			}
		})
		s.flags("Other flags", rest)
		return s.flush()
	})
}

// flags writes the flags of a set that are not hidden, under a title.
func (s *screen) flags(title string, fs *pflag.FlagSet) {
	if fs.HasAvailableFlags() {
		s.printf("\n%s:\n%s", title, fs.FlagUsagesWrapped(s.width))
	}
}

// ownHelp shows a verb's own flags, and those of run that are mostly used with it. It
// is called when all flags are there.
func ownHelp(c *cobra.Command) {
	c.SetUsageFunc(func(c *cobra.Command) error {
		s := newScreen(c.OutOrStdout())
		s.printf("Usage:\n  %s\n", c.UseLine())
		if c.Example != "" {
			s.printf("\nExamples:\n%s\n", c.Example)
		}
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		shared := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			switch _, runs := f.Value.(*rawFlag); {
			case slices.Contains(mostUsed(), f.Name):
				shared.AddFlag(f)
			case !runs:
				own.AddFlag(f)
			}
		})
		s.flags("Flags", own)
		s.flags("Flags of run", shared)
		s.printf("\nAll other flags of run are taken, too: see '%s run --help'.\n", strings.Fields(c.CommandPath())[0])
		return s.flush()
	})
}
