// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-proxy/tandem/core/printable"
)

// encoder turns YAML nodes into the JSON that Kubernetes' decoder reads, with
// the same rules as kubectl: booleans of YAML 1.1, merge keys, numbers in
// all their spellings. Unlike the YAML library's decoder it reports duplicate
// keys with their lines and bounds what aliases expand to.
type encoder struct {
	limits Limits
	out    []byte
	work   int
	faults []Fault
	halted bool // a limit was reached; the rest is incomplete
}

func (e *encoder) fault(n *yaml.Node, text string) {
	if len(e.faults) < e.limits.Faults {
		e.faults = append(e.faults, Fault{Line: n.Line - 1, Text: text})
	}
}

func (e *encoder) duplicate(n *yaml.Node, key string, first int) {
	if len(e.faults) < e.limits.Faults {
		e.faults = append(e.faults, Fault{Line: n.Line - 1, Text: Printable(key) + ": duplicate key, first", First: &first})
	}
}

func (e *encoder) halt(n *yaml.Node, text string) {
	if !e.halted {
		e.fault(n, text)
	}
	e.halted = true
}

// spend counts the visit of a node and reports whether to go on.
func (e *encoder) spend(n *yaml.Node, depth int) bool {
	e.work++
	switch {
	case depth > e.limits.Depth:
		e.halt(n, fmt.Sprintf("nested deeper than %d levels", e.limits.Depth))
	case e.work > e.limits.Work || len(e.out) > e.limits.JSONBytes:
		e.halt(n, "its aliases expand to more than can be read")
	}
	return !e.halted
}

func (e *encoder) node(n *yaml.Node, depth int) {
	if !e.spend(n, depth) {
		return
	}
	if tag := n.ShortTag(); n.Kind != yaml.AliasNode && !strings.HasPrefix(tag, "!!") {
		e.fault(n, "the tag "+printable.Quoted(tag)+" is unknown")
	}
	switch n.Kind {
	case yaml.AliasNode:
		e.node(n.Alias, depth+1)
	case yaml.MappingNode:
		e.mapping(n, depth)
	case yaml.SequenceNode:
		e.out = append(e.out, '[')
		for i, c := range n.Content {
			if i > 0 {
				e.out = append(e.out, ',')
			}
			e.node(c, depth+1)
		}
		e.out = append(e.out, ']')
	default:
		e.scalar(n)
	}
}

func (e *encoder) mapping(n *yaml.Node, depth int) {
	e.out = append(e.out, '{')
	for i, p := range e.pairs(n, depth) {
		if i > 0 {
			e.out = append(e.out, ',')
		}
		e.out = appendString(e.out, p.key)
		e.out = append(e.out, ':')
		e.node(p.value, depth+1)
	}
	e.out = append(e.out, '}')
}

// pair is an entry of a mapping.
type pair struct {
	key         string
	name, value *yaml.Node
}

// pairs returns the entries of a mapping, those merged in by "<<" last. A key
// of the mapping itself wins over a merged one.
func (e *encoder) pairs(n *yaml.Node, depth int) []pair {
	own := make([]pair, 0, len(n.Content)/2)
	var merged []*yaml.Node
	seen := seenKeys{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Tag == "!!merge" {
			merged = append(merged, value)
			continue
		}
		key, ok := e.key(name)
		if !ok {
			continue
		}
		if first, dup := seen.add(own, key, name); dup {
			e.duplicate(name, key, first.Line-1)
			continue
		}
		own = append(own, pair{key, name, value})
	}
	for _, m := range merged {
		own = e.merge(own, &seen, m, depth+1)
	}
	return own
}

// merge adds the entries of a merged mapping, or of a list of them, that are
// not there yet.
func (e *encoder) merge(own []pair, seen *seenKeys, n *yaml.Node, depth int) []pair {
	if !e.spend(n, depth) {
		return own
	}
	switch n.Kind {
	case yaml.AliasNode:
		return e.merge(own, seen, n.Alias, depth+1)
	case yaml.SequenceNode:
		for _, c := range n.Content {
			own = e.merge(own, seen, c, depth+1)
		}
	case yaml.MappingNode:
		for _, p := range e.pairs(n, depth+1) {
			e.work++
			if _, dup := seen.add(own, p.key, p.name); !dup {
				own = append(own, p)
			}
		}
	default:
		e.fault(n, "<<: only mappings can be merged")
	}
	return own
}

// seenKeys finds duplicate keys: by looking through a small mapping, by a map
// for a large one.
type seenKeys struct{ large map[string]*yaml.Node }

func (s *seenKeys) add(own []pair, key string, name *yaml.Node) (first *yaml.Node, dup bool) {
	const small = 16
	if s.large == nil && len(own) < small {
		i := slices.IndexFunc(own, func(p pair) bool { return p.key == key })
		if i < 0 {
			return nil, false
		}
		return own[i].name, true
	}
	if s.large == nil {
		s.large = make(map[string]*yaml.Node, 2*small)
		for _, p := range own {
			s.large[p.key] = p.name
		}
	}
	if first, dup = s.large[key]; !dup {
		s.large[key] = name
	}
	return first, dup
}

func (e *encoder) key(n *yaml.Node) (string, bool) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		e.fault(n, "a key must be a string, but this one "+Describe(n))
		return "", false
	}
	if respelled(n) {
		e.fault(n, "a key must be a string, but this one "+Describe(n)+": put it in quotes")
		return "", false
	}
	return n.Value, true
}

// respelled reports whether kubectl would make another key of a bare word: "true" of
// on, 16 of 0x10.
func respelled(n *yaml.Node) bool {
	switch n.ShortTag() {
	case "!!bool":
		return n.Value != "true" && n.Value != "false"
	case "!!int", "!!float":
		return !plainNumber(n.Value) || n.Value == "-0"
	}
	_, old := oldBool(n)
	return old
}

func (e *encoder) scalar(n *yaml.Node) {
	switch n.ShortTag() {
	case "!!str", "!!timestamp":
		if b, ok := oldBool(n); ok {
			e.out = strconv.AppendBool(e.out, b)
		} else {
			e.out = appendString(e.out, n.Value)
		}
	case "!!null":
		e.out = append(e.out, "null"...)
	case "!!bool":
		e.out = strconv.AppendBool(e.out, strings.EqualFold(n.Value, "true"))
	case "!!int", "!!float":
		e.number(n)
	case "!!binary":
		e.fault(n, "the tag !!binary is not supported")
		fallthrough
	default: // unknown tags were reported before
		e.out = append(e.out, "null"...)
	}
}

func (e *encoder) number(n *yaml.Node) {
	if plainNumber(n.Value) {
		e.out = append(e.out, n.Value...)
		return
	}
	var i int64
	var f float64
	switch { // the library would cut fractions off to get an integer
	case n.ShortTag() == "!!int" && n.Decode(&i) == nil:
		e.out = strconv.AppendInt(e.out, i, 10)
	case n.Decode(&f) == nil && !math.IsNaN(f) && !math.IsInf(f, 0):
		b, _ := json.Marshal(f)
		e.out = append(e.out, b...)
	default:
		e.fault(n, printable.Quoted(n.Value)+" is not a finite number")
		e.out = append(e.out, "null"...)
	}
}

// plainNumber reports whether s is an integer as JSON writes them.
func plainNumber(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	return digits != "" && len(digits) < 19 && strings.Trim(digits, "0123456789") == "" &&
		(digits[0] != '0' || len(digits) == 1)
}

// appendString appends a JSON string.
func appendString(out []byte, s string) []byte {
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) < 0 {
		out = append(out, '"')
		out = append(out, s...)
		return append(out, '"')
	}
	b, _ := json.Marshal(s) // a string can always be marshalled
	return append(out, b...)
}
