// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/core/printable"
)

func newConfig() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration, print the defaults, explain settings",
		Long: `config checks and explains tandem's configuration: kube-proxy's flags, its
configuration file (KubeProxyConfiguration v1alpha1), and a few flags of tandem's own.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newConfigCheck(), newConfigDefaults(), newConfigExplain())
	return c
}

func newConfigCheck() *cobra.Command {
	flags := configFlags{compat: strict}
	var here bool
	var out output
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Report all errors of a configuration, and settings without effect",
		Long: `check reads a configuration file, and flags as run takes them, and reports all
mistakes. The exit code is 0 without mistakes, 2 with some, and 1 if the file cannot
be read. On Windows it is a mistake of a service's configuration, too, if files that it
names are there and ordinary users may change them.`,
		Example: "  tandem config check /var/lib/kube-proxy/config.conf\n  tandem config check --config config.conf --hostname-override node-1",
		Args:    atMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if flags.file != "" {
					return usageError{fmt.Errorf("%s and --config %s: check takes one file", args[0], flags.file)}
				}
				flags.file = args[0]
			}
			need := flags.needTrustedFiles
			if here {
				need = flags.needHere
			}
			c, notes, err := flags.config(need)
			printNotes(cmd, notes)
			d := newConfigDocument(c, notes, err)
			return errors.Join(out.print(cmd, report{document: d, text: func(s *screen) error { d.write(s); return nil }}), err)
		},
	}
	out.register(c)
	flags.register(c)
	c.Flags().BoolVar(&here, "here", false, "also check that a service of this machine can read the files that it names: the kubeconfig, the folder of manifests")
	return c
}

// configDocument is the result of a check.
type configDocument struct {
	Valid       bool        `json:"valid"`
	Mistakes    []string    `json:"mistakes"`
	Notes       []string    `json:"notes"`          // settings without effect, and the like
	Mode        config.Mode `json:"mode,omitempty"` // of a valid one
	Node        string      `json:"node,omitempty"`
	Differences string      `json:"differences"` // the page of what is not as in kube-proxy
}

func newConfigDocument(c *config.Config, notes []config.Finding, err error) configDocument {
	d := configDocument{Valid: err == nil, Mistakes: []string{}, Notes: []string{}, Differences: differencesPage}
	for _, n := range notes {
		d.Notes = append(d.Notes, n.String())
	}
	if err != nil {
		d.Mistakes = strings.Split(err.Error(), "\n")
		return d
	}
	d.Mode, d.Node = c.Mode, c.NodeName
	return d
}

// write shows people a valid configuration; mistakes are the error of the command.
func (d configDocument) write(s *screen) {
	if d.Valid {
		s.printf("the configuration is valid: mode %s, node %s\n", d.Mode, printable.Text(d.Node))
		s.printf("what is not as in kube-proxy: %s\n", d.Differences)
	}
}

func newConfigDefaults() *cobra.Command {
	return &cobra.Command{
		Use:     "defaults",
		Short:   "Print a configuration file with every field, its default and its meaning",
		Example: "  tandem config defaults > config.conf",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := config.Default()
			_, err := cmd.OutOrStdout().Write(file.Render(&c, true))
			return err
		},
	}
}
