// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/platform"
)

func newDoctor() *cobra.Command {
	config := config.Default()
	address := config.HTTPAddress
	var out output
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine: which modes work, and what prevents Services from working",
		Long: `doctor tries each mode, and checks the system, rules that kube-proxy and others have
made, the tandem that runs here, and the addresses that it listens on. It changes
nothing that lasts: modes are tried in temporary network namespaces and chains, for
which the kernel may load modules. Each check has an id that stays the same, and
says what to do. The exit code is 1 when a check fails.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := platform.Examine(cmd.Context(), &config, askRunning(cmd, address))
			err := out.print(cmd, report{document: checks, text: func(s *screen) error { writeChecks(s, checks); return nil }})
			if err == nil && diagnosis.Worst(checks) == diagnosis.Fail {
				err = errors.New("a check failed")
			}
			return err
		},
	}
	c.Flags().StringVar((*string)(&config.Mode), "proxy-mode", string(config.Mode), "the mode to check for: "+strings.Join(platform.Names(), " or "))
	c.Flags().StringVar(&address, "address", address, "where the running tandem serves its status")
	complete(c, "proxy-mode", platform.Names()...)
	out.register(c)
	return c
}

// writeChecks shows checks to people, one a paragraph.
func writeChecks(s *screen, checks []diagnosis.Check) {
	const margin = "                             "
	indent := func(text string) string { return strings.ReplaceAll(text, "\n", "\n"+margin) }
	for _, c := range checks {
		s.text.WriteString(s.paint(stateColor(string(c.Level)), fmt.Sprintf("%-5s", strings.ToUpper(string(c.Level)))))
		s.printf(" %-22s %s\n", c.ID, indent(c.Found))
		if c.Fix != "" {
			s.printf("%sfix: %s\n", margin, indent(c.Fix))
		}
	}
}

// askRunning asks the tandem that runs here for its status; nil where none answers.
func askRunning(cmd *cobra.Command, address string) *diagnosis.Running {
	doc, err := fetchStatus(cmd, address)
	if err != nil {
		return nil
	}
	return doc.Running()
}
