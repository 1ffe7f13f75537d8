package file

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/config"
)

// fault is what is wrong with a value.
type fault struct {
	line int
	text string
}

// read returns the words of a value of a kind.
func read(n *yaml.Node, k config.Kind) ([]string, *fault) {
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
		item = resolve(item)
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
	words, seen := []string{}, map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], resolve(n.Content[i+1])
		word, bad := scalar(v, config.Bool)
		if bad == nil && (key.Kind != yaml.ScalarNode || seen[key.Value]) {
			bad = &fault{key.Line, fmt.Sprintf("%s is there twice, or no name", printable(key.Value))}
		}
		if bad != nil {
			return nil, bad
		}
		seen[key.Value] = true
		words = append(words, key.Value+"="+word)
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
	for i := 0; i+1 < len(n.Content); i += 2 {
		var bad *fault
		key, v := n.Content[i], resolve(n.Content[i+1])
		switch key.Value {
		case "filePattern":
			pattern, bad = scalar(v, config.Text)
		case "verbosity":
			level, bad = scalar(v, config.Int)
		default:
			bad = &fault{key.Line, "unknown field " + printable(key.Value)}
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
	text := fmt.Sprintf("is %s, and should be a %s", describe(n), k)
	if n.Kind == yaml.ScalarNode {
		switch {
		case k == config.Duration && n.ShortTag() == "!!int":
			text = fmt.Sprintf("%s has no unit: write %ss for seconds", printable(n.Value), n.Value)
		case k == config.Text:
			text += fmt.Sprintf(": put it in quotes, %q", n.Value)
		}
	}
	return &fault{n.Line, strings.Replace(text, "a true or false", "true or false", 1)}
}

// describe says what a node is.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!str":
		return "the text " + printable(n.Value)
	case "!!int", "!!float":
		return "the number " + printable(n.Value)
	}
	return printable(n.Value)
}

// resolve follows an alias. They cannot be nested deeper than the document is.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// value returns the value of a key, or nil.
func value(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return resolve(n.Content[i+1])
		}
	}
	return nil
}

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

// printable returns a user's word for a message, quoted if it could disturb a
// terminal, and shortened.
func printable(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	if q := strconv.Quote(s); q[1:len(q)-1] != s {
		return q
	}
	return s
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
