// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/platform"
)

func newDoctor() *cobra.Command {
	config := config.Default()
	address := config.HTTPAddress
	var out output
	var bundle string
	var redact bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine: which modes work, and what prevents Services from working",
		Long: `doctor probes each mode, and checks the system, rules of kube-proxy and other
programs, the running tandem, and the addresses that it listens on. It makes no
lasting change: modes are probed with temporary tables, chains and virtual servers
that no packet meets, for which the kernel may load modules. Each check has a stable
id, and states what to do. The exit code is 1 when a check fails.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := platform.Examine(cmd.Context(), &config, askRunning(cmd, address))
			err := out.print(cmd, report{document: checks, text: func(s *screen) error { writeChecks(s, checks); return nil }})
			if err == nil && bundle != "" {
				err = writeBundle(cmd, bundle, checks, redact)
			}
			if err == nil && diagnosis.Worst(checks) == diagnosis.Fail {
				err = errors.New("a check failed")
			}
			return err
		},
	}
	c.Flags().StringVar((*string)(&config.Mode), "proxy-mode", string(config.Mode), "the mode to check for: "+strings.Join(platform.Names(), " or "))
	c.Flags().StringVar(&address, "address", address, "where the running tandem serves its status")
	complete(c, "proxy-mode", platform.Names()...)
	c.Flags().StringVar(&bundle, "bundle", "", "also write a snapshot of the running tandem to this new file, with the checks, for a bug report")
	c.Flags().BoolVar(&redact, "redact", false, "with --bundle: replace names and addresses, and remove free text")
	out.register(c)
	return c
}

// writeBundle writes a snapshot with checks to a file that is not there yet.
func writeBundle(cmd *cobra.Command, path string, checks []diagnosis.Check, redact bool) error {
	f, err := takeSnapshot(cmd)
	if err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	f.Checks = checks
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	if redact {
		err = writeRedacted(file, f, "")
	} else {
		err = snapshot.Write(file, f)
	}
	return errors.Join(err, file.Close())
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

// askRunning requests the status of the tandem that runs here; nil where none answers.
func askRunning(cmd *cobra.Command, address string) *diagnosis.Running {
	doc, err := fetchStatus(cmd, address, &status.Filter{})
	if err != nil {
		return nil
	}
	return doc.Running()
}
