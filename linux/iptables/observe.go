package iptables

import (
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// reading is what iptables-save tells of one table: the objects that are ours,
// and the content of chains that many share.
type reading struct {
	family  model.Family
	objects map[Key]Value
	book    book

	table  Table
	ours   bool                // this table is one of those that we use
	kernel map[string]bool     // chains of the kernel
	rules  map[string][]string // rules by chain, in their order
}

// parseSave reads the output of iptables-save. It passes over what is not ours
// and cannot fail: what is not like anything of ours is foreign or, in a chain
// of ours, alien and to be removed.
func parseSave(family model.Family, output string) *reading {
	r := &reading{family: family, objects: map[Key]Value{}, book: book{}}
	for l := range strings.Lines(output) {
		r.line(strings.TrimSuffix(l, "\n"))
	}
	return r
}

func (r *reading) line(l string) {
	switch {
	case strings.HasPrefix(l, "*"):
		r.begin(l[1:])
	case !r.ours:
	case strings.HasPrefix(l, ":"):
		name, rest, _ := strings.Cut(l[1:], " ")
		r.kernel[name] = !strings.HasPrefix(rest, "-")
		r.rules[name] = nil
	case strings.HasPrefix(l, "-A "):
		chain, text, _ := strings.Cut(l[len("-A "):], " ")
		if r.kernel[chain] || classOf(chain) != foreign {
			r.rules[chain] = append(r.rules[chain], text)
		}
	case l == "COMMIT":
		r.commit()
	}
}

func (r *reading) begin(table string) {
	r.ours = true
	switch table {
	case Filter.String():
		r.table = Filter
	case NAT.String():
		r.table = NAT
	default:
		r.ours = false
	}
	r.kernel, r.rules = map[string]bool{}, map[string][]string{}
}

// commit turns a table into objects.
func (r *reading) commit() {
	for chain, rules := range r.rules {
		id := chainID{r.family, r.table, chain}
		switch {
		case r.kernel[chain]:
			r.shared(id, ourJumps(rules))
		case classOf(chain) == whole:
			r.objects[Key{chainID: id}] = canonical(rules)
		case classOf(chain) == shared:
			r.put(Key{chainID: id}, "")
			r.shared(id, rules)
		}
	}
	r.ours = false
}

// canonical returns rules in our own spelling. Those that are not like any of
// ours stay as they are: the chain then differs from what it should be.
func canonical(rules []string) Value {
	var text []byte
	for _, raw := range rules {
		if rule, err := parseRule(raw); err == nil {
			text = rule.append(text)
		} else {
			text = append(append(text, raw...), '\n')
		}
	}
	return Value(text)
}

// ourJumps returns those rules of a chain of the kernel that are ours: whatever
// leads to a chain of ours, and the one that stops martians.
func ourJumps(rules []string) (ours []string) {
	for _, raw := range rules {
		rule, err := parseRule(raw)
		if err == nil && (classOf(rule.Target) != foreign || against(rule)) {
			ours = append(ours, raw)
		}
	}
	return ours
}

// The first byte of the Line of what should not be in a chain. It is in no
// place of its own; to delete it is to write the chain anew without it.
const alien = '0'

// shared takes the rules of a chain to which many contribute, or of the kernel.
func (r *reading) shared(id chainID, rules []string) {
	last, ordered := "", true
	for n, raw := range rules {
		text := Value(raw + "\n")
		rule, err := parseRule(raw)
		k := Key{id, line(id, rule)}
		_, twice := r.objects[k]
		if err != nil || twice {
			r.put(Key{id, string(alien) + strconv.Itoa(n) + " " + raw}, text)
			continue
		}
		ordered = ordered && last < k.Line
		last = k.Line
		r.objects[k] = rule.text()
		if classOf(id.Chain) == foreign {
			r.book.set(k, text) // to delete a rule it must be spelled as it was
		} else {
			r.book.set(k, rule.text())
		}
	}
	if !ordered {
		r.put(Key{id, string(alien) + "order"}, "")
	}
}

func (r *reading) put(k Key, v Value) {
	r.objects[k] = v
	r.book.set(k, v)
}
