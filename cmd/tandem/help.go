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

// mostUsed are the flags of run that verbs about Services are called with.
func mostUsed() []string {
	return []string{"config", "manifests", "kubeconfig", "hostname-override", "proxy-mode", "cluster-cidr"}
}

// groupedHelp shows the flags of run under the subjects of their settings.
func groupedHelp(c *cobra.Command) {
	c.Annotations = nil
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

// ofRun reports whether a flag is one of run's.
func ofRun(f *pflag.Flag) bool {
	_, raw := f.Value.(*rawFlag)
	return raw
}

// shownOfRun is the annotation of a verb that has the flags of run that its help shows.
const shownOfRun = "shown flags of run"

// hideFlagsOfRun leaves to the manual page of a verb the flags that its help shows.
func hideFlagsOfRun(c *cobra.Command) {
	for _, verb := range c.Commands() {
		hideFlagsOfRun(verb)
	}
	shown, some := c.Annotations[shownOfRun]
	if !some {
		return
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Hidden || ofRun(f) && !slices.Contains(strings.Fields(shown), f.Name)
	})
	c.Long += "\n\nAll other flags of run are accepted, too: see tandem-run(8)."
}

// ownHelp shows a verb's own flags, and those of run's that are named.
func ownHelp(c *cobra.Command, runs []string) {
	c.Annotations = map[string]string{shownOfRun: strings.Join(runs, " ")}
	c.SetUsageFunc(func(c *cobra.Command) error {
		s := newScreen(c.OutOrStdout())
		s.printf("Usage:\n  %s\n", c.UseLine())
		if c.Example != "" {
			s.printf("\nExamples:\n%s\n", c.Example)
		}
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		shared := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			switch {
			case slices.Contains(runs, f.Name):
				shared.AddFlag(f)
			case !ofRun(f):
				own.AddFlag(f)
			}
		})
		s.flags("Flags", own)
		s.flags("Flags of run", shared)
		s.printf("\nAll other flags of run are accepted, too: see '%s run --help'.\n", strings.Fields(c.CommandPath())[0])
		return s.flush()
	})
}
