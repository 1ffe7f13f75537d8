// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"iter"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Entry is one of a mapping, in the order of the document.
type Entry struct {
	Key, Value *yaml.Node // an alias is resolved
	First      *yaml.Node // the same key before, or nil
}

// Entries returns the entries of a mapping, merge keys unexpanded.
func Entries(n *yaml.Node) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		first := map[string]*yaml.Node{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			e := Entry{Key: n.Content[i], Value: Resolve(n.Content[i+1])}
			if e.First = first[e.Key.Value]; e.First == nil {
				first[e.Key.Value] = e.Key
			}
			if !yield(e) {
				return
			}
		}
	}
}

// Resolve follows an alias.
func Resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// IsNull reports whether a node is null, or nothing.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// entry returns the key and the value of an entry of a mapping, or nil.
func entry(n *yaml.Node, name string) (key, value *yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key = n.Content[i]; key.Kind == yaml.ScalarNode && key.Value == name {
			return key, Resolve(n.Content[i+1])
		}
	}
	return nil, nil
}

// Get returns the value of a key, or nil.
func Get(n *yaml.Node, name string) *yaml.Node {
	_, value := entry(n, name)
	return value
}

// String returns the string value of a key, or "".
func String(n *yaml.Node, name string) string {
	if v := Get(n, name); v != nil && v.Kind == yaml.ScalarNode && v.ShortTag() == "!!str" {
		return v.Value
	}
	return ""
}

// Line returns the line, from 0, of a path such as "spec.ports[1].port", or of as
// much of it as is there.
func Line(n *yaml.Node, path string) int {
	line := n.Line
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		key, next := entry(n, step)
		if i, err := strconv.Atoi(step); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			key, next = n.Content[i], n.Content[i]
		}
		if next == nil {
			break
		}
		line, n = key.Line, next
	}
	return line - 1
}

// oldBool reports whether a bare word is a boolean of YAML 1.1, which kubectl
// still reads.
func oldBool(n *yaml.Node) (value, ok bool) {
	if n.Style != 0 || len(n.Value) > 3 {
		return false, false
	}
	switch n.Value {
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}
