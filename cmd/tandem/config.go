// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
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
		Long: `config is about what tandem is configured by: kube-proxy's flags and its
configuration file, KubeProxyConfiguration v1alpha1, and a few flags of its own.`,
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
		Short: "Report all mistakes of a configuration, and settings without effect",
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

func newConfigExplain() *cobra.Command {
	return &cobra.Command{
		Use:     "explain [FIELD | SECTION | --FLAG]",
		Short:   "Describe a setting: what it does, its default, and whether a change needs a restart",
		Example: "  tandem config explain\n  tandem config explain iptables.masqueradeBit\n  tandem config explain conntrack\n  tandem config explain --cluster-cidr",
		Args:    atMostOne,
		// The names of flags are arguments here.
		DisableFlagParsing: true,
		ValidArgsFunction:  cobra.FixedCompletions(settingNames(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return listSettings(newScreen(cmd.OutOrStdout()))
			case args[0] == "-h" || args[0] == "--help":
				return cmd.Help()
			}
			found := config.Find(args[0])
			if g := newRun().Flags().Lookup(strings.TrimLeft(args[0], "-")); len(found) == 0 && g != nil {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "--%s\n  %s\n", g.Name, g.Usage)
				return err
			}
			if len(found) == 0 {
				return unknownSetting(args[0])
			}
			for i, s := range found {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				explainSetting(cmd.OutOrStdout(), &s)
			}
			return nil
		},
	}
}

// listSettings prints a line for each setting.
func listSettings(s *screen) error {
	preset := config.Default()
	t := table{columns: []column{{name: "FIELD", keep: true}, {name: "FLAG", keep: true}, {name: "CHANGE"}, {name: "DEFAULT"}}}
	for _, set := range config.Settings() {
		live := "restart"
		switch {
		case set.Unused != "":
			live = "unused"
		case set.Live(), set.Tried():
			live = "live"
		}
		t.add(orDash(set.Path), orDash(flagName(&set)), live, orDash(set.Value(&preset).String()))
	}
	s.table(t)
	return s.flush()
}

func explainSetting(out io.Writer, s *config.Setting) {
	preset := config.Default()
	v := s.Value(&preset)
	fmt.Fprintln(out, s.Name())
	for _, line := range file.Wrap(s.Doc, 76) {
		fmt.Fprintf(out, "  %s\n", line)
	}
	row := func(name, text string) { fmt.Fprintf(out, "  %-9s %s\n", name, text) }
	if s.Path != "" && s.Flag != "" {
		row("flag", flagName(s))
	}
	row("value", string(v.Kind))
	row("default", orDash(v.String()))
	switch {
	case s.Unused != "":
		row("change", "no effect: "+s.Unused)
	case s.Tried():
		row("change", "applied by a running tandem if the new value works; else "+s.Restart)
	case s.Restart != "":
		row("change", "needs a restart: "+s.Restart)
	default:
		row("change", "applied by a running tandem")
	}
	if s.Deprecated != "" {
		row("old", s.Deprecated)
	}
}

func flagName(s *config.Setting) string {
	switch len(s.Flag) {
	case 0:
		return ""
	case 1:
		return "-" + s.Flag
	}
	return "--" + s.Flag
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func unknownSetting(name string) error {
	var all []string
	for _, s := range config.Settings() {
		all = append(all, s.Path, s.Flag)
		if i := strings.LastIndexByte(s.Path, '.'); i >= 0 {
			all = append(all, s.Path[i+1:])
		}
	}
	hint := ""
	if near := config.Nearest(strings.TrimLeft(name, "-"), all); near != "" {
		hint = "did you mean " + near + "? "
	}
	return usageError{fmt.Errorf("no setting %q: %s'tandem config explain' lists all", name, hint)}
}

// settingNames are the fields and flags that explain knows, for shells.
func settingNames() (names []string) {
	for _, s := range config.Settings() {
		if s.Path != "" {
			names = append(names, s.Path)
		}
		if s.Flag != "" {
			names = append(names, flagName(&s))
		}
	}
	return names
}
