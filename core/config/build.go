// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
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
		case counting[0].Remark != nil:
			if text := counting[0].Remark(a.Words); text != "" {
				b.note(a, text)
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

// twoSources notes that of two sources of Services one is not looked at. Both on the command line are a mistake: who
// names an API server there wants it.
func (b *builder) twoSources() {
	for _, name := range []string{"clientConnection.kubeconfig", "--master"} {
		switch a, said := b.origin[name]; {
		case !said || b.config.Manifests == "":
		case strings.HasPrefix(a.Name, "--"):
			b.problem(a, "excludes --manifests: Services come from one of them")
		default:
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

// mistakes validates a configuration and returns the findings by setting:
// each value by itself, and combinations of values. Which modes there are
// is not known here: see Input.Mode.
func (c *Config) mistakes() (found []Finding) {
	for _, s := range Settings() {
		if s.Counts != nil && !s.Counts(c.Mode) || s.Deprecated != "" {
			continue
		}
		if v := s.Value(c); v.Check != nil {
			if err := v.Check(); err != nil {
				found = append(found, Finding{Name: s.Name(), Text: err.Error()})
			}
		}
	}
	wrong := func(name, format string, args ...any) {
		found = append(found, Finding{Name: name, Text: fmt.Sprintf(format, args...)})
	}
	switch {
	case c.DetectLocal == DetectBridgeInterface && c.PodBridge == "":
		wrong("detectLocal.bridgeInterface", "must name the bridge when pods are detected by %s", c.DetectLocal)
	case c.DetectLocal == DetectInterfacePrefix && c.PodInterfacePrefix == "":
		wrong("detectLocal.interfaceNamePrefix", "must be set when pods are detected by %s", c.DetectLocal)
	case c.DetectLocal == DetectClusterCIDR && !onePerFamily(c.ClusterCIDRs):
		wrong("clusterCIDR", "can be one range, or one of IPv4 and one of IPv6")
	}
	if inIPVS(c.Mode) && c.Gates.Off(GateIPVS) {
		wrong("mode", "%s is disabled by the feature gate %s=false", c.Mode, GateIPVS)
	}
	if c.MinSyncPeriod > c.SyncPeriod && c.SyncPeriod > 0 {
		wrong(c.section()+".minSyncPeriod", "%s is longer than the sync period, %s", c.MinSyncPeriod, c.SyncPeriod)
	}
	return found
}

// section is the section of a file whose periods count in the mode.
func (c *Config) section() string {
	switch {
	case inIPVS(c.Mode):
		return "ipvs"
	case inNFTables(c.Mode):
		return "nftables"
	}
	return "iptables"
}

func onePerFamily(ps []netip.Prefix) bool {
	return len(ps) < 2 || len(ps) == 2 && ps[0].Addr().Is4() != ps[1].Addr().Is4()
}

// Finding is an error or a note about a configuration.
type Finding struct {
	Where string // "file:line", or empty
	Name  string // of the setting, or empty
	Text  string
}

// String returns the finding as one line.
func (f Finding) String() string {
	s := f.Text
	if f.Name != "" {
		s = f.Name + ": " + s
	}
	if f.Where != "" {
		s = f.Where + ": " + s
	}
	return s
}

// Plain returns a setting's value in a Config in the form of a file, in Go's
// types: bool, json.Number, string, []any, map[string]any, or nil for an empty
// list. The word that files use for an empty text becomes the empty text.
func (s *Setting) Plain(c *Config) any {
	v := s.Value(c)
	words := v.Get()
	switch v.Kind {
	case Bool:
		return isTrue(words[0])
	case Int, Number:
		return json.Number(words[0])
	case List:
		var list []any
		for _, w := range words {
			list = append(list, w)
		}
		return list
	case Map:
		all := map[string]any{}
		for _, w := range words {
			name, on, _ := strings.Cut(w, "=")
			all[name] = isTrue(on)
		}
		return all
	case Modules:
		return plainModules(words)
	}
	if words[0] == s.Empty {
		return ""
	}
	return words[0]
}

// isTrue reads a word that was checked when it was set.
func isTrue(word string) bool {
	on, _ := strconv.ParseBool(word)
	return on
}

func plainModules(words []string) any {
	var list []any
	for _, w := range words {
		pattern, level, _ := strings.Cut(w, "=")
		n, _ := strconv.Atoi(level) // checked when it was set
		list = append(list, map[string]any{"filePattern": pattern, "verbosity": n})
	}
	return list
}

// Flags returns the values in effect of all flags that set something, for /flagz.
func (c *Config) Flags() map[string]string {
	all, public := map[string]string{}, c.Public()
	for _, s := range Settings() {
		if _, seen := all[s.Flag]; s.Flag == "" || seen && s.Counts != nil && !s.Counts(c.Mode) {
			continue
		}
		all[s.Flag] = s.Value(public).String()
	}
	return all
}

// Tree returns a configuration as the object that a KubeProxyConfiguration is in
// JSON, with every field, for /configz. Settings that have no field are left out.
func (c *Config) Tree() map[string]any {
	root := map[string]any{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
	preset := Default()
	for _, s := range Settings() {
		if s.Path == "" {
			continue
		}
		at, from := root, c
		if s.Counts != nil && !s.Counts(c.Mode) {
			from = &preset // the other section's value is not this one's
		}
		steps := strings.Split(s.Path, ".")
		for _, step := range steps[:len(steps)-1] {
			next, ok := at[step].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[step] = next
			}
			at = next
		}
		at[steps[len(steps)-1]] = s.Plain(from)
	}
	return root
}
