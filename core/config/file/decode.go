// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/strictyaml"
)

// The only version of the only kind there is.
const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
)

// Decoded is the content of a file.
type Decoded struct {
	Assignments []config.Assignment // in the order of the file
	Problems    []config.Finding    // errors, for kube-proxy, too
	Lapses      []config.Finding    // errors that kube-proxy ignores
	Notes       []config.Finding    // fields that kube-proxy has removed
}

// Decode reads a document. Name is the file's, for error messages.
func Decode(name string, text []byte) Decoded {
	d := decoder{name: name, fields: map[string]config.Setting{}, sections: map[string]bool{"": true}}
	for _, s := range config.Settings() {
		if s.Path == "" {
			continue
		}
		d.fields[s.Path] = s
		for path := s.Path; path != ""; {
			path = path[:max(0, strings.LastIndexByte(path, '.'))]
			d.sections[path] = true
		}
	}
	d.document(text)
	return d.Decoded
}

type decoder struct {
	Decoded
	name     string
	fields   map[string]config.Setting // by path
	sections map[string]bool           // paths of what holds fields
}

func (d *decoder) problem(line int, path, format string, args ...any) {
	d.Problems = append(d.Problems, config.Finding{Where: d.where(line), Name: path, Text: fmt.Sprintf(format, args...)})
}

func (d *decoder) lapse(line int, path, format string, args ...any) {
	d.Lapses = append(d.Lapses, config.Finding{Where: d.where(line), Name: path, Text: fmt.Sprintf(format, args...)})
}

func (d *decoder) where(line int) string {
	if line <= 0 {
		return d.name
	}
	return d.name + ":" + strconv.Itoa(line)
}

func (d *decoder) document(content []byte) {
	content, line, why := strictyaml.Text(bytes.Clone(content))
	if why != "" {
		d.problem(line, "", "%s", why)
		return
	}
	n, after, bad := strictyaml.Parse(content)
	switch {
	case bad != nil:
		d.problem(bad.Line+1, "", "is not valid YAML: %s", bad.Text)
		return
	case n == nil:
		d.problem(0, "", "is empty: it needs at least apiVersion: %s and kind: %s", apiVersion, kind)
		return
	case after >= 0:
		d.lapse(after+1, "", "a second document: only the first is read")
	}
	if n = strictyaml.Resolve(n); n.Kind != yaml.MappingNode {
		d.problem(n.Line, "", "%s, must be a %s", strictyaml.Describe(n), kind)
		return
	}
	if d.header(n) {
		d.section(n, "")
	}
}

// header checks apiVersion and kind.
func (d *decoder) header(n *yaml.Node) bool {
	version, what := strictyaml.Get(n, "apiVersion"), strictyaml.Get(n, "kind")
	switch {
	case text(what) == "ConfigMap":
		d.problem(what.Line, "kind", "is a ConfigMap: use the file in it (data, config.conf)")
		return false
	case what == nil || text(what) != kind:
		d.problem(lineOf(what, n), "kind", "must be %s", kind)
	}
	if version == nil || text(version) != apiVersion {
		d.problem(lineOf(version, n), "apiVersion", "must be %s", apiVersion)
	}
	return true
}

// section reads the fields of an object.
func (d *decoder) section(n *yaml.Node, path string) {
	for e := range strictyaml.Entries(n) {
		name := e.Key.Value
		if e.First != nil {
			d.lapse(e.Key.Line, join(path, name), "duplicate key, first in line %d: the last one is used", e.First.Line)
		}
		if path != "" || name != "apiVersion" && name != "kind" { // else it was read by header
			d.entry(e.Key, e.Value, path, join(path, name))
		}
	}
}

func (d *decoder) entry(key, v *yaml.Node, parent, path string) {
	s, known := d.fields[path]
	switch {
	case strings.Contains(key.Value, ".") || key.Kind != yaml.ScalarNode || !known && !d.sections[path] && !retired(path):
		d.lapse(key.Line, printable(path), "unknown field%s", d.hint(parent, key.Value))
	case retired(path):
		d.Notes = append(d.Notes, config.Finding{Where: d.where(key.Line), Name: path, Text: "ignored: kube-proxy has removed this field"})
	case known:
		d.field(key.Line, v, &s)
	case strictyaml.IsNull(v):
	case v.Kind != yaml.MappingNode:
		d.problem(v.Line, path, "%s, must be an object", strictyaml.Describe(v))
	default:
		d.section(v, path)
	}
}

// field turns one field into an assignment, unless it is not set.
func (d *decoder) field(line int, v *yaml.Node, s *config.Setting) {
	if strictyaml.IsNull(v) {
		return
	}
	k := s.Value(new(config.Config)).Kind
	words, fault := valueWords(v, k)
	if fault != nil {
		d.problem(fault.line, s.Path, "%s", fault.text)
		return
	}
	unset := k.Many() && len(words) == 0 || !k.Many() && k.Zero(words[0])
	if s.ZeroCounts || !unset {
		d.Assignments = append(d.Assignments, config.Assignment{Name: s.Path, Words: words, Where: d.where(line)})
	}
}

// retired reports whether kube-proxy has removed a field, which configurations of
// old clusters may still have.
func retired(path string) bool {
	return path == "udpIdleTimeout" || path == "resourceContainer"
}

// hint suggests the field that was meant.
func (d *decoder) hint(parent, name string) string {
	var names []string
	add := func(path string) {
		if up, last := split(path); up == parent && last != "" {
			names = append(names, last)
		}
	}
	for path := range d.fields {
		add(path)
	}
	for path := range d.sections {
		add(path)
	}
	if near := config.Nearest(name, names); near != "" {
		return ": did you mean " + near + "?"
	}
	return ""
}
