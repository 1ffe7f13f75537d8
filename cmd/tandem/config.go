// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

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
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Report all errors of a configuration, and settings without effect",
		Long: `check reads a configuration file, and flags as run takes them, and reports all
mistakes. The exit code is 0 without mistakes, 2 with some, and 1 if the file cannot
be read.`,
		Example: "  tandem config check /var/lib/kube-proxy/config.conf\n  tandem config check --config config.conf --hostname-override node-1",
		Args:    atMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if flags.file != "" {
					return usageError{fmt.Errorf("%s and --config %s: check takes one file", args[0], flags.file)}
				}
				flags.file = args[0]
			}
			var needs []need
			if here {
				needs = append(needs, needHere)
			}
			c, notes, err := flags.config(needs...)
			printNotes(cmd, notes)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the configuration is valid: mode %s, node %s\n", c.Mode, printable.Text(c.NodeName))
			fmt.Fprintf(cmd.OutOrStdout(), "what is not as in kube-proxy: %s\n", differencesPage)
			return nil
		},
	}
	flags.register(c)
	c.Flags().BoolVar(&here, "here", false, "also check that the files it names exist on this machine: the kubeconfig, the folder of manifests")
	return c
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
