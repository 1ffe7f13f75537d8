// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// The exit codes, the same for every verb.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // a mistake on the command line, or nothing that could answer it
	exitDiffers = 3 // there are differences
)

// exitCode is that of a verb that ended with err.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, new(differsError)):
		return exitDiffers
	case errors.As(err, new(usageError)), errors.As(err, new(unsupportedError)):
		return exitUsage
	}
	return exitFailure
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// unsupportedError means that the mode in use cannot do what was asked for.
type unsupportedError string

func (e unsupportedError) Error() string { return string(e) }

// differsError means that there are differences or changes pending, which are on the
// standard output.
type differsError string

func (e differsError) Error() string { return string(e) }

// knownVerb rejects unknown verbs of a command, and suggests one of it or of its
// verbs.
func knownVerb(c *cobra.Command, args []string) error {
	i := slices.IndexFunc(args, func(a string) bool { return a != "" })
	if i < 0 {
		return nil
	}
	paths := map[string]string{} // by name; the shortest
	var add func(*cobra.Command)
	add = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if path, known := paths[sub.Name()]; !sub.Hidden && (!known || len(sub.CommandPath()) < len(path)) {
				paths[sub.Name()] = sub.CommandPath()
			}
			add(sub)
		}
	}
	add(c)
	text := fmt.Sprintf("%s has no verb %q", c.CommandPath(), args[i])
	if near := config.Nearest(args[i], slices.Collect(maps.Keys(paths))); near != "" {
		text += ": did you mean '" + paths[near] + "'?"
	}
	return usageError{errors.New(text)}
}

// noArgs accepts empty arguments, as kube-proxy does: templates of manifests produce
// them.
func noArgs(c *cobra.Command, args []string) error {
	for _, a := range args {
		if a != "" {
			return usageError{fmt.Errorf("%s takes no argument: %q", c.CommandPath(), a)}
		}
	}
	return nil
}

func atMostOne(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError{fmt.Errorf("%s takes one argument at most, not %d", c.CommandPath(), len(args))}
	}
	return nil
}

// serviceArgument reads NAMESPACE/NAME, the one argument that a verb may have; without
// a namespace it is default. Without an argument the name is empty: all Services.
func serviceArgument(args []string) (n model.ServiceName, err error) {
	if len(args) == 0 {
		return n, nil
	}
	text := args[0]
	if !strings.Contains(text, "/") {
		text = "default/" + text
	}
	if n, err = model.ParseServiceName(text); err != nil {
		return n, usageError{err}
	}
	return n, nil
}

// serviceText is what queries call a Service; empty for all.
func serviceText(n model.ServiceName) string {
	if n == (model.ServiceName{}) {
		return ""
	}
	return n.String()
}
