// SPDX-License-Identifier: Apache-2.0

package file

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/strictyaml"
)

// fault describes an invalid value.
type fault struct {
	line int // from 1
	text string
}

// valueWords returns the words of a value of a kind.
func valueWords(n *yaml.Node, k config.Kind) ([]string, *fault) {
	switch {
	case !k.Many():
		word, bad := scalar(n, k)
		return []string{word}, bad
	case k == config.Map:
		return readMap(n, k)
	case n.Kind != yaml.SequenceNode:
		return nil, mistyped(n, k)
	}
	words := []string{}
	for _, item := range n.Content {
		item = strictyaml.Resolve(item)
		word, bad := "", (*fault)(nil)
		if k == config.Modules {
			word, bad = readModule(item)
		} else {
			word, bad = scalar(item, config.Text)
		}
		if bad != nil {
			return nil, bad
		}
		words = append(words, word)
	}
	return words, nil
}

func readMap(n *yaml.Node, k config.Kind) ([]string, *fault) {
	if n.Kind != yaml.MappingNode {
		return nil, mistyped(n, k)
	}
	words := []string{}
	for e := range strictyaml.Entries(n) {
		word, bad := scalar(e.Value, config.Bool)
		if bad == nil && (e.Key.Kind != yaml.ScalarNode || e.First != nil) {
			bad = &fault{e.Key.Line, fmt.Sprintf("%s: duplicate key, or not a name", printable(e.Key.Value))}
		}
		if bad != nil {
			return nil, bad
		}
		words = append(words, e.Key.Value+"="+word)
	}
	slices.Sort(words)
	return words, nil
}

// readModule reads {filePattern: reflector*, verbosity: 6}.
func readModule(n *yaml.Node) (string, *fault) {
	if n.Kind != yaml.MappingNode {
		return "", mistyped(n, config.Modules)
	}
	pattern, level := "", "0"
	for e := range strictyaml.Entries(n) {
		var bad *fault
		switch e.Key.Value {
		case "filePattern":
			pattern, bad = scalar(e.Value, config.Text)
		case "verbosity":
			level, bad = scalar(e.Value, config.Int)
		default:
			bad = &fault{e.Key.Line, "unknown field " + printable(e.Key.Value)}
		}
		if bad != nil {
			return "", bad
		}
	}
	return pattern + "=" + level, nil
}

// scalar returns the one word of a value. Types are as strict as kube-proxy's:
// a text that looks like a number must be in quotes. Words are of one form for
// one value, whatever the notation.
func scalar(n *yaml.Node, k config.Kind) (string, *fault) {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode {
		return "", mistyped(n, k)
	}
	switch k {
	case config.Bool:
		var b bool // plain yes, no, on and off are YAML's older words for it
		if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 && n.Decode(&b) == nil {
			return strconv.FormatBool(b), nil
		}
	case config.Int:
		var i int64
		if tag == "!!int" && n.Decode(&i) == nil {
			return strconv.FormatInt(i, 10), nil
		}
	case config.Number:
		var f float64
		if (tag == "!!int" || tag == "!!float") && n.Decode(&f) == nil {
			return strconv.FormatFloat(f, 'g', -1, 64), nil
		}
	case config.Interval:
		var ns int64
		if tag == "!!int" && n.Decode(&ns) == nil {
			return strconv.FormatInt(ns, 10) + "ns", nil
		}
		if tag == "!!str" {
			return n.Value, nil
		}
	case config.Quantity:
		if tag == "!!str" || tag == "!!int" || tag == "!!float" {
			return n.Value, nil
		}
	default: // texts, and durations, which are texts in JSON
		if tag == "!!str" || tag == "!!timestamp" {
			return n.Value, nil
		}
	}
	return "", mistyped(n, k)
}

func mistyped(n *yaml.Node, k config.Kind) *fault {
	text := fmt.Sprintf("%s, must be %s", strictyaml.Describe(n), k.Phrase())
	if n.Kind == yaml.ScalarNode {
		switch {
		case k == config.Duration && n.ShortTag() == "!!int":
			text = fmt.Sprintf("%s has no unit: write %ss for seconds", printable(n.Value), n.Value)
		case k == config.Text:
			text += fmt.Sprintf(": put it in quotes, %q", n.Value)
		}
	}
	return &fault{n.Line, text}
}

// text returns the value of a string, or "".
func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return ""
	}
	return n.Value
}

func lineOf(n, parent *yaml.Node) int {
	if n == nil {
		return parent.Line
	}
	return n.Line
}

// printable returns a name for a message, shortened.
func printable(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	return strictyaml.Printable(s)
}

func join(parent, name string) string {
	if parent == "" {
		return name
	}
	return parent + "." + name
}

func split(path string) (parent, name string) {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)], path[i+1:]
}
