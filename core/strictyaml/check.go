// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	strictjson "sigs.k8s.io/json"

	"github.com/tandem-proxy/tandem/core/config"
)

// Decode decodes a node into a Go type with JSON tags. Halted means that a limit was
// reached: then the result is incomplete.
func Decode(n *yaml.Node, into any, l Limits) (faults []Fault, halted bool) {
	e := encoder{limits: l}
	e.node(n, 0)
	if e.halted {
		return e.faults, true
	}
	strict, err := strictjson.UnmarshalStrict(e.out, into)
	if len(e.faults) == 0 && err == nil && len(strict) == 0 {
		return nil, false
	}
	c := checker{limits: l}
	c.value(n, reflect.TypeOf(into).Elem(), "")
	faults = append(e.faults, c.faults...)
	if len(faults) == 0 { // the decoder checks something that the checker does not
		faults = []Fault{{Line: n.Line - 1, Text: fmt.Sprint(err, strict)}}
	}
	if err != nil || len(faults) >= l.Faults { // more may be wrong than what was found
		for i := range faults {
			faults[i].Newer = false
		}
	}
	Sort(faults)
	return faults, false
}

// checker finds everything in a document that does not fit a Go type, with the
// line of each. It runs only after strict decoding has failed: the decoder
// stops at the first wrong type and knows no lines.
type checker struct {
	limits Limits
	faults []Fault
}

func (c *checker) fault(n *yaml.Node, path, text string) {
	if len(c.faults) < c.limits.Faults {
		c.faults = append(c.faults, Fault{Line: n.Line - 1, Text: path + ": " + text})
	}
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (c *checker) value(n *yaml.Node, t reflect.Type, path string) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.ShortTag() == "!!null" || len(c.faults) == c.limits.Faults {
		return
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		c.custom(n, t, path)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		c.object(n, t, path)
	case reflect.Map:
		if c.is(n, yaml.MappingNode, path, "an object") {
			for _, p := range c.pairs(n) {
				c.value(p.value, t.Elem(), Join(path, p.key))
			}
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			c.scalar(n, reflect.TypeFor[string](), path)
		} else if c.is(n, yaml.SequenceNode, path, "a list") {
			for i, e := range n.Content {
				c.value(e, t.Elem(), path+"["+strconv.Itoa(i)+"]")
			}
		}
	default:
		c.scalar(n, t, path)
	}
}

func (c *checker) object(n *yaml.Node, t reflect.Type, path string) {
	if !c.is(n, yaml.MappingNode, path, "an object") {
		return
	}
	fields := map[string]reflect.Type{}
	fieldsOf(t, fields)
	for _, p := range c.pairs(n) {
		if ft, ok := fields[p.key]; ok {
			c.value(p.value, ft, Join(path, p.key))
			continue
		}
		hint := "unknown field"
		for name := range fields {
			if strings.EqualFold(name, p.key) {
				hint += ", did you mean " + name + "?"
			}
		}
		c.fault(p.name, Join(path, Printable(p.key)), hint)
		newer := config.Nearest(p.key, slices.Collect(maps.Keys(fields))) == ""
		c.faults[len(c.faults)-1].Newer = newer // there is one: value ends at the limit
		if len(c.faults) == c.limits.Faults {
			return
		}
	}
}

// fieldsOf collects the JSON names of a struct's fields, with those of embedded
// structs.
func fieldsOf(t reflect.Type, into map[string]reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name != "":
			into[name] = f.Type
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			fieldsOf(f.Type, into)
		}
	}
}

func (c *checker) scalar(n *yaml.Node, t reflect.Type, path string) {
	buf := c.json(n)
	if buf == nil || json.Unmarshal(buf, reflect.New(t).Interface()) == nil {
		return
	}
	got := Describe(n)
	switch want := t.Kind(); {
	case want == reflect.String && n.Kind == yaml.ScalarNode:
		c.fault(n, path, got+", must be a string: put it in quotes")
	case want == reflect.String:
		c.fault(n, path, got+", must be a string")
	case want == reflect.Bool:
		c.fault(n, path, got+", must be true or false")
	case n.ShortTag() == "!!int":
		c.fault(n, path, got+", out of range")
	default:
		c.fault(n, path, got+", must be a whole number")
	}
}

// custom tries to decode a value into a type that decodes itself, such as a time or a
// number-or-name.
func (c *checker) custom(n *yaml.Node, t reflect.Type, path string) {
	if buf := c.json(n); buf != nil && json.Unmarshal(buf, reflect.New(t).Interface()) != nil {
		c.fault(n, path, Describe(n)+", not a valid "+t.Name())
	}
}

func (c *checker) is(n *yaml.Node, kind yaml.Kind, path, want string) bool {
	if n.Kind == kind {
		return true
	}
	c.fault(n, path, Describe(n)+", must be "+want)
	return false
}

// pairs and json use the encoder; its faults were reported when the whole document
// was encoded.
func (c *checker) pairs(n *yaml.Node) []pair {
	e := encoder{limits: c.limits}
	return e.pairs(n, 0)
}

func (c *checker) json(n *yaml.Node) []byte {
	e := encoder{limits: c.limits}
	if e.node(n, 0); len(e.faults) > 0 {
		return nil
	}
	return e.out
}

// Join is the path of a field of what is at a path.
func Join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
