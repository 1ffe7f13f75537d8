// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Assignment is one setting as a user wrote it.
type Assignment struct {
	Name  string   // a field's path, or a flag with its dashes
	Words []string // one word, except for lists and maps
	Where string   // "file:line"; empty for a flag, which Name identifies
}

// Report is what was found while a configuration was built.
type Report struct {
	Problems []Finding // with any of them the configuration cannot be used
	Notes    []Finding // what has no effect, and why
}

// Err returns the problems as one error with a line for each; nil without any.
func (r *Report) Err() error {
	var errs []error
	for _, p := range r.Problems {
		errs = append(errs, errors.New(p.String()))
	}
	return errors.Join(errs...)
}

// Input is the input of Build: assignments from the file and from flags.
type Input struct {
	HasFile bool
	File    []Assignment // in the order of the file
	Flags   []Assignment // in the order of the command line
	// Mode validates the name of a mode; nil accepts any.
	Mode func(Mode) error
}

// Build makes a configuration. As in kube-proxy, most flags are ignored
// when there is a file; each of them is noted. All mistakes are reported together; the
// configuration is to be used only when there are none.
func Build(in Input) (*Config, Report) {
	c := Default()
	b := builder{config: &c, origin: map[string]Assignment{}}
	settings, file, flags := Settings(), in.File, in.Flags
	if in.HasFile {
		flags = b.besideFile(settings, flags)
	}
	for i := range settings {
		b.apply(&settings[i], file, flags)
	}
	b.defaultDSR(in.HasFile)
	b.pointless(settings, file)
	b.pointless(settings, flags)
	b.twoSources()
	c.Complete()
	found := c.mistakes()
	if in.Mode != nil {
		if err := in.Mode(c.Mode); err != nil {
			found = append([]Finding{{Name: "mode", Text: err.Error()}}, found...)
		}
	}
	for _, m := range found {
		if a, ok := b.origin[m.Name]; ok {
			m.Name, m.Where = a.Name, a.Where
		}
		if !slices.Contains(b.Problems, m) {
			b.Problems = append(b.Problems, m)
		}
	}
	return &c, b.Report
}

type builder struct {
	Report
	config *Config
	origin map[string]Assignment // by the name of the setting
}

// defaultDSR turns DSR on where it is not set, no mode is named, and no
// file of kube-proxy's form, in which false and unset are the same, keeps its
// default: on Windows each load balancer without DSR takes 64 of the node's
// ports away (Azure/AKS#1375). Where HNS cannot, it is not used.
func (b *builder) defaultDSR(hasFile bool) {
	if _, said := b.origin["winkernel.enableDSR"]; !said && !hasFile && b.config.Mode == Auto {
		b.config.Windows.DSR = true
	}
}

// besideFile drops the flags that are ignored when there is a file.
func (b *builder) besideFile(settings []Setting, flags []Assignment) (kept []Assignment) {
	for _, a := range flags {
		i := slices.IndexFunc(settings, func(s Setting) bool { return s.is(a) })
		if i < 0 || settings[i].BesideFile {
			kept = append(kept, a)
			continue
		}
		b.note(a, "is ignored, since there is a --config, as in kube-proxy: set "+settings[i].fieldOrFlag()+" in the file")
	}
	return kept
}

func (s *Setting) fieldOrFlag() string {
	if s.Path == "" {
		return "it"
	}
	return s.Path
}

// is reports whether an assignment is about the setting.
func (s *Setting) is(a Assignment) bool {
	return s.Path != "" && a.Name == s.Path || s.Flag != "" && a.Name == "--"+s.Flag
}

// apply sets one setting: from the file, and then from a flag.
func (b *builder) apply(s *Setting, file, flags []Assignment) {
	if s.Counts != nil && !s.Counts(b.config.Mode) {
		return
	}
	var words []string // of flags, where they are joined with the file's
	for _, a := range slices.Concat(file, flags) {
		if !s.is(a) {
			continue
		}
		b.origin[s.Name()] = a
		if s.Joined {
			a.Words = slices.Concat(a.Words, words)
			words = a.Words
		}
		err := s.Value(b.config).Set(a.Words)
		switch {
		case errors.As(err, new(noEffect)):
			b.note(a, err.Error())
		case err != nil:
			b.problem(a, err.Error())
		case s.Deprecated != "":
			b.note(a, "is deprecated: "+s.Deprecated)
		}
	}
}

// pointless notes settings without effect: in this mode, or in any.
func (b *builder) pointless(settings []Setting, said []Assignment) {
	preset := Default()
	for _, a := range said {
		var about, counting []Setting
		for _, s := range settings {
			if s.is(a) {
				about = append(about, s)
				if s.Counts == nil || s.Counts(b.config.Mode) {
					counting = append(counting, s)
				}
			}
		}
		switch {
		case len(about) == 0:
			b.problem(a, "there is no such setting")
		case slices.Equal(about[0].Value(&preset).Get(), a.Words):
		case len(counting) == 0:
			b.note(a, fmt.Sprintf("has no effect in the mode %s%s", b.config.Mode, b.insteadOf(settings, about[0])))
		case counting[0].Unused != "":
			b.note(a, fmt.Sprintf("%s has no effect: %s", strings.Join(a.Words, ","), counting[0].Unused))
		case counting[0].Ignored != nil:
			if words := counting[0].Ignored(a.Words); words != "" {
				b.note(a, words+" has no effect: Tandem has no such feature gate")
			}
		}
	}
}

// insteadOf names the setting of another section that counts in this mode.
func (b *builder) insteadOf(settings []Setting, s Setting) string {
	_, field, _ := strings.Cut(s.Path, ".")
	for _, o := range settings {
		if _, f, ok := strings.Cut(o.Path, "."); ok && f == field && o.Path != s.Path && o.Counts != nil && o.Counts(b.config.Mode) {
			return ", " + o.Path + " has"
		}
	}
	return ""
}

// twoSources notes that of two sources of Services one is not looked at.
func (b *builder) twoSources() {
	for _, name := range []string{"clientConnection.kubeconfig", "--master"} {
		if a, said := b.origin[name]; said && b.config.Manifests != "" {
			b.note(a, "has no effect: Services come from --manifests")
		}
	}
}

func (b *builder) note(a Assignment, text string) {
	b.Notes = append(b.Notes, Finding{Where: a.Where, Name: a.Name, Text: text})
}

func (b *builder) problem(a Assignment, text string) {
	f := Finding{Where: a.Where, Name: a.Name, Text: text}
	if !slices.Contains(b.Problems, f) {
		b.Problems = append(b.Problems, f)
	}
}
