package nftables

import (
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// class is what a pick chain does to the masquerade bit.
type class uint8

const (
	asIs   class = iota // leave it: clear for this node's pods, set for all others
	snat                // set it
	noSNAT              // clear it
)

var classSuffix = [...]string{asIs: "", snat: "-snat", noSNAT: "-nosnat"}

// masks reports whether the class masquerades packets of an origin.
func (c class) masks(o model.Origin) bool {
	return c == snat || c == asIs && o != model.FromPod
}

// statements are what a chain of the class begins with.
func (c class) statements(bit uint32) []Statement {
	switch c {
	case snat:
		return []Statement{SetMark{bit}}
	case noSNAT:
		return []Statement{ClearMark{bit}}
	}
	return nil
}

// pick is a pick chain: it balances over the first Count slots of a front's
// pool. It does not know which front, so all fronts with pools of that size
// share it.
type pick struct {
	slots  SetID // Slots or NodeSlots
	class  class
	second bool // the front's second pool
	count  uint32
}

// name returns the chain's name, such as "pick-5", "pick-5-snat" or
// "nodepick-5-nosnat-second".
func (p pick) name() string {
	name := "pick-"
	if p.slots == NodeSlots {
		name = "nodepick-"
	}
	name += strconv.Itoa(int(p.count)) + classSuffix[p.class]
	if p.second {
		name += "-second"
	}
	return name
}

// parsePick is the reverse of name.
func parsePick(name string) (p pick, ok bool) {
	p.slots = Slots
	rest, ok := strings.CutPrefix(name, "pick-")
	if !ok {
		p.slots = NodeSlots
		if rest, ok = strings.CutPrefix(name, "nodepick-"); !ok {
			return p, false
		}
	}
	rest, p.second = strings.CutSuffix(rest, "-second")
	rest, p.class = cutClass(rest)
	count, err := strconv.ParseUint(rest, 10, 16)
	p.count = uint32(count)
	return p, err == nil && count > 0 && p.name() == name
}

// cutClass cuts the suffix of a class off a name.
func cutClass(name string) (rest string, c class) {
	for c := snat; c <= noSNAT; c++ {
		if rest, found := strings.CutSuffix(name, classSuffix[c]); found {
			return rest, c
		}
	}
	return name, asIs
}

// first returns the number of the pool's first slot.
func (p pick) first() uint32 {
	if p.second {
		return bankSize
	}
	return 0
}

// rules returns the chain's rules. A packet may take its verdict before a commit
// and look up its slot after it, when the pool is smaller: it then goes to the
// pool's first slot, and is dropped where there is none. It must not go on with
// the front's address.
func (p pick) rules(bit uint32) []Rule {
	rules := []Rule{rule(append(p.class.statements(bit), p.send(p.count)...)...)}
	if p.count > 1 {
		rules = append(rules, rule(p.send(1)...))
	}
	return append(rules, rule(Discard{}))
}

// send chooses one of the pool's first n slots. Only packets with a port can have
// matched a front; nft does not know that and wants to see it said before a port
// is rewritten. It is said with a named set, as an anonymous one in every chain
// would make all changes slower.
func (p pick) send(n uint32) []Statement {
	return []Statement{In{Set: L4}, SendToSlot{Map: p.slots, Count: n, First: p.first()}}
}
