// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/platform"
)

// configFlags are the flags of the verbs that serve or plan Services: one for
// each setting that has one, and those that select the source of the others.
type configFlags struct {
	file   string
	compat string
	flags  *pflag.FlagSet
	given  []config.Assignment // in the order of the command line
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
	f.flags = fs
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
	if f.file == "" {
		return nil
	}
	f.file = watch.Path(f.file)
	f.text, err = file.Read(f.file)
	return err
}

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

// unknownFlags reports all unknown flags of a command line, each with a suggestion.
func unknownFlags(fs *pflag.FlagSet, args []string) error {
	var names []string
	fs.VisitAll(func(g *pflag.Flag) { names = append(names, g.Name) })
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
