// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Script renders objects as an nft script, in a stable order. For a whole plan, the
// script can be loaded with "nft -f" on a host without Tandem's tables, and "nft list
// ruleset" then shows the same, except for line breaks between elements. For a subset
// it shows only these objects.
func (t *Table) Script(objects map[Key]Value) string {
	s := script{Table: t, objects: objects, elements: map[Key][]Key{}}
	s.Grow(elementText * len(objects))
	var tables [2][]Key // the rest of each family
	keys := t.Sorted(objects)
	for i, k := range keys {
		switch k.Kind {
		case KindForeign:
			continue
		case KindElement:
			set := SetKey(k.Family, k.Set.Name)
			if _, defined := objects[set]; !defined && len(s.elements[set]) == 0 {
				tables[k.Family] = append(tables[k.Family], set)
			}
			s.elements[set] = keys[i-len(s.elements[set]) : i+1] // those of a set are side by side
		default:
			tables[k.Family] = append(tables[k.Family], k)
		}
	}
	for _, f := range model.Families() {
		if len(tables[f]) > 0 {
			s.table(f, tables[f])
		}
	}
	return s.String()
}

// Sorted returns the keys of objects in the order of Script.
func (t *Table) Sorted(objects map[Key]Value) []Key {
	keys := slices.AppendSeq(make([]Key, 0, len(objects)), maps.Keys(objects))
	slices.SortFunc(keys, t.compare)
	return keys
}

// compare orders objects for listings: by family and kind, then sets as in the table, and
// the others by address, protocol, port, slot and name.
func (t *Table) compare(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Family, b.Family), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(t.setOrder(a), t.setOrder(b)),
		slices.Compare(a.Addr[:], b.Addr[:]), cmp.Compare(a.Proto, b.Proto),
		cmp.Compare(a.Port, b.Port), cmp.Compare(a.Slot, b.Slot), a.Detail.compare(b.Detail))
}

func (t *Table) setOrder(k Key) int {
	s := k.Set
	if k.Kind == KindSet {
		s = t.named[k.Name()]
	}
	if s == nil {
		return len(t.sets)
	}
	return s.order
}

// elementText is the approximate length of an element's line, in bytes.
const elementText = 64

type script struct {
	*Table
	strings.Builder
	objects  map[Key]Value
	elements map[Key][]Key
}

func (s *script) linef(format string, a ...any) { fmt.Fprintf(s, format+"\n", a...) }

func (s *script) table(f model.Family, keys []Key) {
	s.linef("table %s %s {", FamilyName(f), s.Name)
	if t, ok := s.objects[TableKey(f)]; ok {
		s.linef("\tcomment \"%s\"", CommentText(t.Body.Comment))
	}
	slices.SortStableFunc(keys, func(a, b Key) int { return cmp.Compare(a.Kind, b.Kind) })
	for _, k := range keys {
		switch k.Kind {
		case KindSet:
			s.set(k)
		case KindChain:
			s.chain(k)
		}
	}
	s.linef("}")
}

func (s *script) set(k Key) {
	def := s.named[k.Name()]
	kind, gives := "set", ""
	switch def.Data {
	case DataVerdict:
		kind, gives = "map", " : verdict"
	case DataEndpoint:
		kind, gives = "map", " : "+keyText(k.Family, endpointFields, "")
	case DataAddress:
		kind, gives = "map", " : "+keyText(k.Family, addressFields, "")
	}
	s.linef("\n\t%s %s {", kind, k.Name())
	if _, defined := s.objects[k]; defined {
		s.linef("\t\ttypeof %s%s", keyText(k.Family, def.stored(k.Family), "numgen random mod 65536"), gives)
		s.setFlags(def)
	}
	for i, e := range s.elements[k] {
		lead, sep := "\t\t\t     ", ",\n"
		if i == 0 {
			lead = "\t\telements = { "
		}
		if i == len(s.elements[k])-1 {
			sep = " }\n"
		}
		s.WriteString(lead)
		s.WriteString(e.Text(s.objects[e]))
		s.WriteString(sep)
	}
	s.linef("\t}")
}

func (s *script) setFlags(def *Set) {
	if def.Interval {
		s.linef("\t\tflags interval")
	}
	if def.Size > 0 {
		s.linef("\t\tsize %d\n\t\tflags dynamic,timeout", def.Size)
	}
}

func (s *script) chain(k Key) {
	c := s.objects[k].Body.Chain
	s.linef("\n\tchain %s {", k.Name())
	if c.Hook.Type != "" {
		s.linef("\t\t%s", c.Hook)
	}
	for _, r := range c.Rules {
		s.linef("\t\t%s", r.Text(k.Family))
	}
	s.linef("\t}")
}

// String spells the hook as nft does, which names a priority only at the hooks where it is
// usual: -100 is "dstnat" in prerouting and a number in output.
func (h Hook) String() string {
	point, priority := fmt.Sprint(uint32(h.Point)), fmt.Sprint(h.Priority)
	switch h.Point {
	case PreRouting:
		point, priority = "prerouting", strings.Replace(priority, "-100", "dstnat", 1)
	case LocalIn:
		point = "input"
	case Forward:
		point = "forward"
	case LocalOut:
		point = "output"
	case PostRouting:
		point, priority = "postrouting", strings.Replace(priority, "100", "srcnat", 1)
	}
	if h.Priority == 0 {
		priority = "filter"
	}
	policy := "accept"
	if h.Policy != PolicyAccept {
		policy = "drop"
	}
	return fmt.Sprintf("type %s hook %s priority %s; policy %s;", h.Type, point, priority, policy)
}

// String names the object, with the family for its table.
func (k Key) String() string { return k.in("") }

// in names the object with its table's name.
func (k Key) in(table string) string {
	table = strings.TrimSuffix(FamilyName(k.Family)+" "+table, " ")
	switch k.Kind {
	case KindTable:
		return "table " + table
	case KindSet:
		return "set " + table + " " + k.Name()
	case KindChain:
		return "chain " + table + " " + k.Name()
	case KindForeign:
		raw, _ := k.Detail.value().(rawKey)
		return fmt.Sprintf("foreign element %x of %s %s", string(raw), table, k.Set)
	}
	return fmt.Sprintf("element { %s } of %s %s", k.elementText(), table, k.Set)
}

// Text spells an element: its key and data.
func (k Key) Text(v Value) string { return k.elementText() + valueText(k, v) }

// elementText spells the key of an element.
func (k Key) elementText() string {
	var parts []string
	for i, f := range k.Set.Key {
		switch f {
		case L4Proto:
			parts = append(parts, protoText(k.Proto))
		case Dport, Sport:
			parts = append(parts, fmt.Sprint(k.Port))
		case Number:
			parts = append(parts, fmt.Sprint(k.Slot))
		default:
			switch r, ok := k.Range(); {
			case ok && (i > 0 || k.Set.ranges()):
				parts = append(parts, r.String())
			case i > 0:
				parts = append(parts, k.second().String())
			default:
				parts = append(parts, unpacked(k.Family, k.Addr).String())
			}
		}
	}
	return strings.Join(parts, " . ")
}

// valueText spells the data of an element. Counters are left out: nft accepts them only for all
// elements of a map.
func valueText(k Key, v Value) (answer string) {
	switch k.Set.Data {
	case DataEndpoint:
		to := v.Endpoint(k.Family)
		answer = fmt.Sprintf(" : %s . %d", to.Addr(), to.Port())
	case DataAddress:
		answer = " : " + v.Endpoint(k.Family).Addr().String()
	case DataVerdict:
		answer = " : drop"
		if v.Body.Verdict == VerdictGoto {
			answer = " : goto " + v.Body.Goto
		}
	}
	if v.Body != nil && v.Body.Comment != "" {
		answer = ` comment "` + CommentText(v.Body.Comment) + `"` + answer
	}
	return answer
}

// String spells the range, as a prefix where it is one.
func (r Range) String() string {
	if p := r.prefix(); p.IsValid() {
		return prefixText(p)
	}
	return r.First.String() + "-" + r.Last.String()
}
