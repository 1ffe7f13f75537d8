// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
)

func newConfigExplain() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:     "explain [FIELD | SECTION | --FLAG]",
		Short:   "Describe a setting: what it does, its default, and whether a change needs a restart",
		Example: "  tandem config explain\n  tandem config explain iptables.masqueradeBit\n  tandem config explain conntrack\n  tandem config explain --cluster-cidr -o json",
		// The names of flags are arguments here.
		DisableFlagParsing: true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && isOutputFlag(args[len(args)-1]) {
				return out.forms, cobra.ShellCompDirectiveNoFileComp
			}
			return append(settingNames(), "--output"), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "-h") || slices.Contains(args, "--help") {
				return cmd.Help()
			}
			args, err := out.cut(args)
			if err = cmp.Or(err, atMostOne(cmd, args)); err != nil {
				return err
			}
			documents := []settingDocument{}
			found := config.Settings()
			if len(args) > 0 {
				found = config.Find(args[0])
				if g := newRun().Flags().Lookup(strings.TrimLeft(args[0], "-")); len(found) == 0 && g != nil {
					documents = append(documents, settingDocument{Flag: "--" + g.Name, Doc: g.Usage, Default: g.DefValue})
				} else if len(found) == 0 {
					return unknownSetting(args[0])
				}
			}
			for i := range found {
				documents = append(documents, describe(&found[i]))
			}
			return out.print(cmd, report{document: documents, text: func(s *screen) error {
				writeSettings(s, documents, len(args) == 0)
				return nil
			}})
		},
	}
	out.register(c)
	return c
}

func isOutputFlag(arg string) bool { return arg == "-o" || arg == "--output" }

// cut takes -o out of arguments in which other flags are names.
func (o *output) cut(args []string) (rest []string, err error) {
	for i := 0; i < len(args) && err == nil; i++ {
		form, given := strings.CutPrefix(args[i], "--output=")
		if isOutputFlag(args[i]) {
			i, form, given = i+1, strings.Join(args[i+1:min(i+2, len(args))], ""), true
		}
		if !given {
			rest = append(rest, args[i])
		} else if e := o.Set(form); e != nil {
			err = usageError{fmt.Errorf("--output %q: %w", form, e)}
		}
	}
	return rest, err
}

// settingDocument describes a setting.
type settingDocument struct {
	Field   string `json:"field,omitempty"`
	Flag    string `json:"flag,omitempty"`
	Doc     string `json:"doc"`
	Kind    string `json:"kind,omitempty"` // of the value
	Default string `json:"default"`
	Change  string `json:"change,omitempty"` // live, restart or unused
	Why     string `json:"why,omitempty"`    // of the change, in a sentence
	Old     string `json:"old,omitempty"`    // what replaces the setting
}

func describe(s *config.Setting) settingDocument {
	preset := config.Default()
	v := s.Value(&preset)
	d := settingDocument{Field: s.Path, Flag: flagName(s), Doc: s.Doc, Kind: string(v.Kind), Default: v.String(), Old: s.Deprecated}
	switch {
	case s.Unused != "":
		d.Change, d.Why = "unused", "no effect: "+s.Unused
	case s.Tried():
		d.Change, d.Why = "live", "applied by a running tandem if the new value works; else "+s.Restart
	case s.Restart != "":
		d.Change, d.Why = "restart", "needs a restart: "+s.Restart
	default:
		d.Change, d.Why = "live", "applied by a running tandem"
	}
	return d
}

// writeSettings prints a line for each setting, or all about some of them.
func writeSettings(s *screen, documents []settingDocument, list bool) {
	if list {
		t := table{columns: []column{{name: "FIELD", keep: true}, {name: "FLAG", keep: true}, {name: "CHANGE"}, {name: "DEFAULT"}, {name: "MEANING", wide: true}}}
		for _, d := range documents {
			t.add(orDash(d.Field), orDash(d.Flag), d.Change, orDash(d.Default), d.Doc)
		}
		s.table(t)
		return
	}
	for i, d := range documents {
		if i > 0 {
			s.printf("\n")
		}
		explainSetting(s, d)
	}
}

func explainSetting(s *screen, d settingDocument) {
	s.printf("%s\n", cmp.Or(d.Field, d.Flag))
	for _, line := range file.Wrap(d.Doc, 76) {
		s.printf("  %s\n", line)
	}
	row := func(name, text string) {
		if text != "" {
			s.printf("  %-9s %s\n", name, text)
		}
	}
	if d.Field != "" {
		row("flag", d.Flag)
	}
	row("value", d.Kind)
	row("default", orDash(d.Default))
	row("change", d.Why)
	row("old", d.Old)
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
