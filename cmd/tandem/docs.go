// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/installers/openrc"
	"github.com/tandem-proxy/tandem/installers/systemd"
)

// Paths of packages.
const (
	packagedProgram = "/usr/bin/tandem"
	packagedConfig  = "/etc/tandem/config.yaml"
)

// newDocs returns the verb that writes what packages contain besides the
// program, generated from the program itself.
func newDocs() *cobra.Command {
	return &cobra.Command{
		Use: "docs DIR", Hidden: true,
		Short: "Write manual pages, completions, service definitions and an example configuration",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("%s takes one folder, not %d", cmd.CommandPath(), len(args))}
			}
			return writeDocs(cmd.Root(), args[0])
		},
	}
}

func writeDocs(root *cobra.Command, dir string) error {
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true // no dates: two builds are the same
	for _, folder := range []string{"man", "completion", "systemd", "openrc"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
	}
	hideFlagsOfRun(root)
	preset := config.Default()
	args := []string{"run", "--config=" + packagedConfig}
	unit, script := systemd.Unit(packagedProgram, args, packagedConfig), openrc.Script(packagedProgram, args, packagedConfig)
	for _, err := range []error{
		doc.GenManTree(root, &doc.GenManHeader{Title: "TANDEM", Section: "8", Manual: "Tandem", Source: "tandem " + versionText()}, filepath.Join(dir, "man")),
		root.GenBashCompletionFileV2(filepath.Join(dir, "completion", "tandem.bash"), true),
		root.GenZshCompletionFile(filepath.Join(dir, "completion", "_tandem")),
		root.GenFishCompletionFile(filepath.Join(dir, "completion", "tandem.fish"), true),
		os.WriteFile(filepath.Join(dir, "systemd", "tandem.service"), []byte(unit), 0o644),
		os.WriteFile(filepath.Join(dir, "openrc", "tandem"), []byte(script), 0o755),
		os.WriteFile(filepath.Join(dir, "config.yaml"), file.Render(&preset, true), 0o644),
	} {
		if err != nil {
			return fmt.Errorf("docs: %w", err)
		}
	}
	return nil
}
