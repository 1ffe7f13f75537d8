// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/printable"
)

// Fault is something wrong in a document.
type Fault struct {
	Line int    // from 0
	Text string // one line that names the field: "spec.ports[0].prot: unknown field"
	// Newer means that the type has neither such a field nor one of a similar name, and that all
	// else was decoded: an object of a newer API, not a mistyped one.
	Newer bool
	First *int // the line of what a duplicate key repeats, from 0, which belongs to Text; or nil
}

// Limits bound what a document may cost.
type Limits struct {
	Depth     int // of nesting
	Work      int // nodes visited, through aliases too
	JSONBytes int // after aliases were expanded
	Faults    int // reported
}

// Sort orders faults by line.
func Sort(fs []Fault) {
	slices.SortStableFunc(fs, func(a, b Fault) int { return a.Line - b.Line })
}

// Printable returns s, quoted if it holds what could disturb a log or a terminal.
func Printable(s string) string {
	if q := strconv.Quote(s); q[1:len(q)-1] != strings.ReplaceAll(s, `\`, `\\`) {
		return q
	}
	return s
}

// Describe returns what a node is, with its value if it has one: "is a list".
func Describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "is an object"
	case yaml.SequenceNode:
		return "is a list"
	}
	switch n.ShortTag() {
	case "!!int":
		return printable.Quoted(n.Value) + " is a number"
	case "!!float":
		return printable.Quoted(n.Value) + " is a fraction"
	case "!!bool":
		return printable.Quoted(n.Value) + " is a boolean"
	case "!!null":
		return "is empty"
	}
	if _, ok := oldBool(n); ok {
		return printable.Quoted(n.Value) + " is a boolean in YAML 1.1"
	}
	return printable.Quoted(n.Value) + " is a string"
}
