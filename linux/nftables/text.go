package nftables

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Script renders objects as an nft script, in a stable order. Of a whole plan it
// is a script that loads with "nft -f" into a host without our tables, and what
// "nft list ruleset" then shows, but for the line breaks between elements. Of
// some objects it shows those.
func Script(objects map[Key]Value) string {
	s := script{objects: objects, elements: map[Key][]Key{}}
	var tables [2][]Key // the rest of each family
	for _, k := range slices.SortedFunc(maps.Keys(objects), compareKeys) {
		set := setKey(k.Family, k.Set.String())
		switch k.Kind {
		case KindAlien:
			continue
		case KindElement:
			if _, defined := objects[set]; !defined && len(s.elements[set]) == 0 {
				tables[k.Family] = append(tables[k.Family], set)
			}
			s.elements[set] = append(s.elements[set], k)
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

// compareKeys orders objects for people: by family and kind, then sets as
// layout.go has them, the rest by name or address.
func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Family, b.Family), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(setOrder(a), setOrder(b)),
		slices.Compare(a.Addr[:], b.Addr[:]), cmp.Compare(a.Proto, b.Proto),
		cmp.Compare(a.Port, b.Port), cmp.Compare(a.Slot, b.Slot), strings.Compare(a.Rest, b.Rest))
}

func setOrder(k Key) SetID {
	if k.Kind != KindSet {
		return k.Set
	}
	if id := setNamed(k.Rest); id != noSet {
		return id
	}
	return numSets
}

type script struct {
	strings.Builder
	objects  map[Key]Value
	elements map[Key][]Key
}

func (s *script) linef(format string, a ...any) { fmt.Fprintf(s, format+"\n", a...) }

func (s *script) table(f model.Family, keys []Key) {
	s.linef("table %s %s {", familyName(f), Table)
	if t, ok := s.objects[tableKey(f)]; ok {
		s.linef("\tcomment \"%s\"", commentText(t.Body.Comment))
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
	def := sets[setNamed(k.Rest)].Set
	kind, gives := "set", ""
	switch def.data {
	case verdict:
		kind, gives = "map", " : verdict"
	case endpoint:
		kind, gives = "map", " : "+keyText(k.Family, []field{daddr, dport}, "")
	case address:
		kind, gives = "map", " : "+keyText(k.Family, []field{daddr}, "")
	}
	s.linef("\n\t%s %s {", kind, k.Rest)
	if _, defined := s.objects[k]; defined {
		s.linef("\t\ttypeof %s%s", keyText(k.Family, def.stored(k.Family), "numgen random mod 65536"), gives)
		s.setFlags(def)
	}
	for i, e := range s.elements[k] {
		lead, sep := "\t\t\t     ", ","
		if i == 0 {
			lead = "\t\telements = { "
		}
		if i == len(s.elements[k])-1 {
			sep = " }"
		}
		s.linef("%s%s%s%s", lead, e.elementText(), valueText(e, s.objects[e]), sep)
	}
	s.linef("\t}")
}

func (s *script) setFlags(def Set) {
	if def.interval {
		s.linef("\t\tflags interval")
	}
	if def.size > 0 {
		s.linef("\t\tsize %d\n\t\tflags dynamic,timeout", def.size)
	}
}

func (s *script) chain(k Key) {
	c := s.objects[k].Body.Chain
	s.linef("\n\tchain %s {", k.Rest)
	if c.Hook.Type != "" {
		s.linef("\t\t%s", c.Hook)
	}
	for _, r := range c.Rules {
		s.linef("\t\t%s", r.text(k.Family))
	}
	s.linef("\t}")
}

// String spells the hook as nft does. nft has a name for a priority only where
// it is common: -100 is "dstnat" in prerouting and a number in output.
func (h Hook) String() string {
	point, priority := fmt.Sprint(uint32(h.Point)), fmt.Sprint(h.Priority)
	switch h.Point {
	case PreRouting:
		point, priority = "prerouting", strings.Replace(priority, "-100", "dstnat", 1)
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
	if h.Policy != policyAccept {
		policy = "drop"
	}
	return fmt.Sprintf("type %s hook %s priority %s; policy %s;", h.Type, point, priority, policy)
}

func (r Rule) text(f model.Family) string {
	parts := make([]string, 0, len(r.Statements)+1)
	for _, s := range r.Statements {
		parts = append(parts, s.text(f))
	}
	if r.Comment != "" {
		parts = append(parts, `comment "`+commentText(r.Comment)+`"`)
	}
	return strings.Join(parts, " ")
}

// elementText spells the key of an element.
func (k Key) elementText() string {
	addr := unpacked(k.Family, k.Addr)
	var parts []string
	for i, f := range sets[min(k.Set, numSets-1)].key {
		switch f {
		case l4proto:
			parts = append(parts, protoText(k.Proto))
		case dport, sport:
			parts = append(parts, fmt.Sprint(k.Port))
		case slot:
			parts = append(parts, fmt.Sprint(k.Slot))
		default:
			switch first, last, ok := k.bounds(); {
			case i > 0 && ok || k.Set.ranges() && ok:
				parts = append(parts, rangeText(first, last))
			case i > 0 && len(k.Rest) == addressLen(k.Family):
				second, _ := netip.AddrFromSlice([]byte(k.Rest))
				parts = append(parts, second.String())
			default:
				parts = append(parts, addr.String())
			}
		}
	}
	return strings.Join(parts, " . ")
}

func valueText(k Key, v Value) (answer string) {
	switch sets[min(k.Set, numSets-1)].data {
	case endpoint:
		to := v.endpoint(k.Family)
		answer = fmt.Sprintf(" : %s . %d", to.Addr(), to.Port())
	case address:
		answer = " : " + v.endpoint(k.Family).Addr().String()
	case verdict:
		answer = " : drop"
		if v.Body.Verdict == VerdictGoto {
			answer = " : goto " + v.Body.Goto
		}
	}
	if v.Body != nil && v.Body.Comment != "" {
		answer = ` comment "` + commentText(v.Body.Comment) + `"` + answer
	}
	return answer
}

// rangeText spells a range of addresses, as a prefix where it is one.
func rangeText(first, last netip.Addr) string {
	if p := prefixOf(first, last); p.IsValid() {
		return prefixText(p)
	}
	return first.String() + "-" + last.String()
}
