package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/config"
)

// The only version of the only kind there is.
const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
)

// Decoded is what a file says.
type Decoded struct {
	Assignments []config.Assignment // in the order of the file
	Problems    []config.Finding    // mistakes for everybody
	Lapses      []config.Finding    // mistakes that kube-proxy overlooks
	Notes       []config.Finding    // what older versions of kube-proxy knew
}

// Decode reads a document. Name is the file's, for the findings.
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

func (d *decoder) document(text []byte) {
	defer func() { // the parser is not ours, and the file may hold anything
		if r := recover(); r != nil {
			d.problem(0, "", "cannot be parsed: %v", r)
		}
	}()
	var root, rest yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	switch err := dec.Decode(&root); {
	case errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0:
		d.problem(0, "", "is empty: it needs at least apiVersion: %s and kind: %s", apiVersion, kind)
		return
	case err != nil:
		d.syntax(err)
		return
	}
	if err := dec.Decode(&rest); !errors.Is(err, io.EOF) {
		d.lapse(max(rest.Line, 0), "", "a second document: only the first is read")
	}
	n := resolve(root.Content[0])
	if n.Kind != yaml.MappingNode {
		d.problem(n.Line, "", "is %s, and should be a %s", describe(n), kind)
		return
	}
	if d.header(n) {
		d.section(n, "")
	}
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (d *decoder) syntax(err error) {
	m := yamlLine.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(m[1])
	d.problem(line, "", "is not YAML: %s", strings.TrimPrefix(err.Error(), m[0]))
}

// header checks what kind of document it is.
func (d *decoder) header(n *yaml.Node) bool {
	version, what := value(n, "apiVersion"), value(n, "kind")
	switch {
	case text(what) == "ConfigMap":
		d.problem(what.Line, "kind", "is a ConfigMap: give the file that is in it (data, config.conf)")
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
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], resolve(n.Content[i+1])
		name := key.Value
		if path == "" && (name == "apiVersion" || name == "kind") {
			name = "" // read already, but there may be two of them
		}
		if line, again := first[key.Value]; again {
			d.lapse(key.Line, join(path, key.Value), "is there twice, first in line %d: the last counts", line)
		}
		first[key.Value] = key.Line
		if name != "" {
			d.entry(key, v, path, join(path, name))
		}
	}
}

func (d *decoder) entry(key, v *yaml.Node, parent, path string) {
	s, known := d.fields[path]
	switch {
	case strings.Contains(key.Value, ".") || key.Kind != yaml.ScalarNode || !known && !d.sections[path] && !retired(path):
		d.lapse(key.Line, printable(path), "unknown field%s", d.hint(parent, key.Value))
	case retired(path):
		d.Notes = append(d.Notes, config.Finding{Where: d.where(key.Line), Name: path, Text: "has no effect: kube-proxy has no such field any more"})
	case known:
		d.field(key.Line, v, &s)
	case isNull(v):
	case v.Kind != yaml.MappingNode:
		d.problem(v.Line, path, "is %s, and should be an object", describe(v))
	default:
		d.section(v, path)
	}
}

// field turns one field into an assignment, unless it is not set.
func (d *decoder) field(line int, v *yaml.Node, s *config.Setting) {
	if isNull(v) {
		return
	}
	k := s.Value(new(config.Config)).Kind
	words, fault := read(v, k)
	if fault != nil {
		d.problem(fault.line, s.Path, "%s", fault.text)
		return
	}
	unset := k.Many() && len(words) == 0 || !k.Many() && k.Zero(words[0])
	if s.ZeroCounts || !unset {
		d.Assignments = append(d.Assignments, config.Assignment{Name: s.Path, Words: words, Where: d.where(line)})
	}
}

// retired reports whether kube-proxy had a field in earlier versions, so that it
// may still be in the configuration of an old cluster.
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
		return ": do you mean " + near + "?"
	}
	return ""
}
