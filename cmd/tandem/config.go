// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/platform"
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
		Long: `check reads a configuration file (- for the standard input), and flags as run takes
them, and reports all mistakes. The exit code is 0 without mistakes, 2 with some, and 1 if
the file cannot be read.
It notes a kubeconfig or a folder of manifests that is not on this machine, which
--here makes a mistake, and a scheduler of IPVS that Linux does not have. On Windows it is
a mistake of a service's configuration, too, if files that it names are there and ordinary
users may change them.`,
		Example: "  tandem config check /var/lib/kube-proxy/config.conf\n  tandem config check --config config.conf --hostname-override node-1",
		Args:    atMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if flags.file != "" {
					return usageError{fmt.Errorf("%s and --config %s: check takes one file", args[0], flags.file)}
				}
				flags.file = args[0]
			}
			if flags.file == "" && len(flags.given) == 0 {
				return usageError{errors.New("nothing to check: name a file (- for the standard input), or give flags as run takes them")}
			}
			flags.stdin = cmd.InOrStdin()
			need := flags.needTrustedFiles
			if here {
				need = flags.needHere
			}
			c, notes, err := flags.config(need)
			if err == nil {
				notes = append(notes, flags.elsewhere(c)...)
			}
			printNotes(cmd, notes)
			d := newConfigDocument(c, notes, err)
			return errors.Join(out.print(cmd, report{document: d, text: func(s *screen) { d.write(s) }}), err)
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
	Differences string      `json:"differences"` // what shows the manual page on differences from kube-proxy
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
		s.printf("differences from kube-proxy: %s\n", d.Differences)
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
				return out.of, cobra.ShellCompDirectiveNoFileComp
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
			return out.print(cmd, report{document: documents, text: func(s *screen) { writeSettings(s, documents, len(args) == 0) }})
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
			t.add(cmp.Or(d.Field, "-"), cmp.Or(d.Flag, "-"), d.Change, cmp.Or(d.Default, "-"), d.Doc)
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
	row("default", cmp.Or(d.Default, "-"))
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

// configFlags are the flags of the verbs that serve or plan Services: one for
// each setting that has one, and those that select the source of the others.
type configFlags struct {
	file   string
	compat string
	given  []config.Assignment // in the order of the command line
	stdin  io.Reader           // the file named -; nil where a file of that name is meant
	text   []byte              // of the file, once config has read it
}

// The values of --compat.
const (
	strict  = "strict"
	lenient = "lenient"
)

// register adds the flags to a verb. Its help shows the flags of run that are named:
// those that it is called with; without names the most used ones of run.
func (f *configFlags) register(c *cobra.Command, shown ...string) {
	fs := c.Flags()
	fs.StringVar(&f.file, "config", "", "file with a KubeProxyConfiguration; most flags are ignored with it, as in kube-proxy")
	fs.StringVar(&f.compat, "compat", cmp.Or(f.compat, lenient), "lenient: unknown and duplicate fields of the file are warnings, as in kube-proxy; strict: they are errors")
	preset := config.Default()
	for _, s := range config.Settings() {
		if s.Flag == "" || fs.Lookup(s.Flag) != nil {
			continue // several fields may share a flag
		}
		v := s.Value(&preset)
		flag := &pflag.Flag{
			Name: s.Flag, Usage: usage(&s), DefValue: v.String(),
			Value:  &rawFlag{kind: v.Kind, name: "--" + s.Flag, text: v.String(), given: &f.given},
			Hidden: s.Deprecated != "" || s.Unused != "" && s.Path == "",
		}
		if len(s.Flag) == 1 {
			flag.Shorthand = s.Flag
		}
		if v.Kind == config.Bool {
			flag.NoOptDefVal = "true"
		}
		fs.AddFlag(flag)
		if v.Choices != nil {
			complete(c, s.Flag, v.Choices...)
		}
	}
	complete(c, "compat", strict, lenient)
	complete(c, "proxy-mode", platform.Names()...)
	fs.SetNormalizeFunc(normalize)
	if len(shown) == 0 {
		shown = mostUsed()
	}
	ownHelp(c, shown)
}

// normalize accepts the short form --node, and underscores for dashes, as kube-proxy
// does.
func normalize(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if name == "node" {
		name = "hostname-override"
	}
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

func usage(s *config.Setting) string {
	text := strings.TrimSuffix(s.Doc, ".")
	if s.Flag == "proxy-mode" {
		text += ". One of: " + strings.Join(platform.Names(), ", ")
	}
	if s.Unused != "" {
		text += ". Accepted; no effect"
	}
	return text
}

// rawFlag is a flag whose value is kept as it was written: its mistakes are reported
// together with all others.
type rawFlag struct {
	kind  config.Kind
	name  string
	text  string
	given *[]config.Assignment
}

// Set implements pflag.Value. A flag that is there twice counts once, with its
// last value; that of a list with all of them.
func (w *rawFlag) Set(text string) error {
	a := config.Assignment{Name: w.name, Words: []string{text}}
	if w.kind.Many() {
		a.Words = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
	}
	i := slices.IndexFunc(*w.given, func(g config.Assignment) bool { return g.Name == w.name })
	switch {
	case i < 0:
		*w.given = append(*w.given, a)
	case w.kind.Many():
		a.Words = slices.Concat((*w.given)[i].Words, a.Words)
		fallthrough
	default:
		(*w.given)[i] = a
	}
	w.text = strings.Join(a.Words, ",")
	return nil
}

func (w *rawFlag) String() string { return w.text }

// Type implements pflag.Value: it is what help shows for the value.
func (w *rawFlag) Type() string {
	switch w.kind {
	case config.Bool:
		return "bool"
	case config.Duration, config.Interval:
		return "duration"
	case config.Int:
		return "int"
	case config.Number:
		return "float"
	case config.List:
		return "strings"
	case config.Map:
		return "name=bool,..."
	case config.Modules:
		return "pattern=N,..."
	}
	return "string"
}

// need checks what a verb requires.
type need func(*config.Config) []config.Finding

// config returns the configuration of file and flags, or all its mistakes. The notes
// are about settings without effect.
func (f *configFlags) config(needs ...need) (c *config.Config, notes []config.Finding, err error) {
	if err := f.read(); err != nil {
		return nil, nil, err
	}
	c, report := f.build(f.text)
	for _, missing := range needs {
		report.Problems = append(report.Problems, missing(c)...)
	}
	if err := report.Err(); err != nil {
		return nil, report.Notes, usageError{err}
	}
	return c, report.Notes, nil
}

// read reads the file, if there is one, wherever it is in a pod.
func (f *configFlags) read() (err error) {
	switch {
	case f.file == "":
		return nil
	case f.isStdin():
		f.text, err = file.ReadFrom(f.stdin, f.file)
		return err
	}
	f.file = watch.Path(f.file)
	f.text, err = file.Read(f.file)
	return err
}

func (f *configFlags) isStdin() bool { return f.stdin != nil && f.file == "-" }

// build makes a configuration of the file's content and the flags, and reports
// problems and notes.
func (f *configFlags) build(text []byte) (*config.Config, config.Report) {
	in := config.Input{HasFile: f.file != "", Flags: f.given, Mode: knownMode}
	var said file.Decoded
	if in.HasFile {
		said = file.Decode(f.file, text)
		in.File = said.Assignments
		said.Notes = append(said.Notes, file.Exposed(f.file)...)
	}
	c, report := config.Build(in)
	switch f.compat {
	case strict:
		said.Problems = append(said.Problems, said.Lapses...)
	case lenient:
		for _, l := range said.Lapses {
			l.Text += "; an error with --compat=" + strict
			said.Notes = append(said.Notes, l)
		}
	default:
		said.Problems = append(said.Problems, config.Finding{Name: "--compat", Text: fmt.Sprintf("%q: must be %s or %s", f.compat, strict, lenient)})
	}
	if c.NodeName == "" {
		c.NodeName, c.NodeIsHost = hostName(&report), true
	}
	report.Problems = append(said.Problems, report.Problems...)
	report.Notes = append(said.Notes, report.Notes...)
	return c, report
}

func knownMode(m config.Mode) error {
	_, err := platform.Find(m)
	return err
}

// hostName returns the machine's name in lower case, as the kubelet registers it.
func hostName(r *config.Report) string {
	name, err := os.Hostname()
	if err != nil {
		r.Problems = append(r.Problems, config.Finding{Name: "--hostname-override", Text: fmt.Sprintf("required, as reading the host name failed: %v", err)})
	}
	return strings.ToLower(strings.TrimSpace(name))
}

// unknownFlags reports all unknown flags of a command line, each with a suggestion. What follows -- are none.
func unknownFlags(fs *pflag.FlagSet, args []string) error {
	var names []string
	fs.VisitAll(func(g *pflag.Flag) { names = append(names, g.Name) })
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	var wrong []string
	for _, a := range args {
		name, ok := strings.CutPrefix(a, "--")
		name, _, _ = strings.Cut(name, "=")
		if !ok || name == "" || fs.Lookup(name) != nil {
			continue
		}
		text := "unknown flag: --" + name
		if near := config.Nearest(name, names); near != "" {
			text += ": did you mean --" + near + "?"
		}
		wrong = append(wrong, text)
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s", strings.Join(wrong, "\n"))
}
