// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// class is what a pick chain does to the masquerade bit.
type class uint8

const (
	asIs   class = iota // leave it: clear for this node's pods, set for all others
	snat                // set it
	noSNAT              // clear it
)

var classSuffix = [...]string{asIs: "", snat: "-snat", noSNAT: "-nosnat"}

// masquerades reports whether the class masquerades packets of an origin.
func (c class) masquerades(o model.Origin) bool {
	return c == snat || c == asIs && o != model.FromPod
}

// statements returns the statements at the beginning of a chain of the class.
func (c class) statements(bit uint32) []nft.Statement {
	switch c {
	case snat:
		return []nft.Statement{nft.SetMark{Bit: bit}}
	case noSNAT:
		return []nft.Statement{nft.ClearMark{Bit: bit}}
	}
	return nil
}

// pick is a pick chain: it balances over the first count slots of a frontend's
// pool. All frontends with pools of that size share it, except for round robin, where the
// rule's own counter must be of one port.
type pick struct {
	slots  *nft.Set // setSlots or setNodeSlots
	class  class
	second bool // the frontend's second pool
	count  uint32
	by     nft.Generator
	port   string // hash of the port, for round robin
}

// The suffixes of chain names by scheduler. For round robin the hash of the port follows.
const (
	suffixMaglev = "-maglev"
	suffixInTurn = "-rr-"
)

// name returns the chain's name, such as "pick-5", "pick-5-snat",
// "nodepick-5-nosnat-second" or "pick-1021-maglev".
func (p pick) name() string {
	name := "pick-"
	if p.slots == setNodeSlots {
		name = "nodepick-"
	}
	name += strconv.Itoa(int(p.count))
	switch p.by {
	case nft.ByJenkins:
		name += suffixMaglev
	case nft.InTurn:
		name += suffixInTurn + p.port
	}
	name += classSuffix[p.class]
	if p.second {
		name += "-second"
	}
	return name
}

// parsePick is the reverse of name.
func parsePick(name string) (p pick, ok bool) {
	p.slots = setSlots
	rest, ok := strings.CutPrefix(name, "pick-")
	if !ok {
		p.slots = setNodeSlots
		if rest, ok = strings.CutPrefix(name, "nodepick-"); !ok {
			return p, false
		}
	}
	rest, p.second = strings.CutSuffix(rest, "-second")
	rest, p.class = cutClass(rest)
	if number, port, found := strings.Cut(rest, suffixInTurn); found {
		rest, p.by, p.port = number, nft.InTurn, port
	} else if number, found := strings.CutSuffix(rest, suffixMaglev); found {
		rest, p.by = number, nft.ByJenkins
	}
	count, err := strconv.ParseUint(rest, 10, 16)
	p.count = uint32(count)
	return p, err == nil && count > 0 && p.name() == name
}

// generator returns the number generator of the port's pick chains and, for round robin,
// the hash of the port.
func (p *portCompiler) generator() (by nft.Generator, port string) {
	switch p.port.Scheduler {
	case model.Maglev:
		return nft.ByJenkins, ""
	case model.RoundRobin:
		sum := sha256.Sum256([]byte(p.port.ID.String() + "/" + p.port.ID.Proto.String()))
		return nft.InTurn, hex.EncodeToString(sum[:8])
	}
	return nft.AtRandom, ""
}

// reportScheduler reports a scheduler that is not supported.
func (p *portCompiler) reportScheduler() {
	s := p.port.Scheduler
	switch {
	case s == model.DefaultScheduler, s == model.Random:
	case p.port.SessionAffinity > 0:
		p.gaps = append(p.gaps, model.Gap{Detail: "the first endpoint of a client with session affinity is chosen at random, not by " + s.String()})
	case s == model.LeastConnections, s == model.SourceHash:
		p.gaps = append(p.gaps, model.Gap{Detail: "endpoints are chosen at random: nftables has no scheduler " + s.String()})
	}
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

// rules returns the chain's rules. A packet may get its verdict before a commit
// and look up its slot after it, when the pool is smaller: then it is sent to the
// pool's first slot, or dropped if there is none. It must not continue to
// the frontend's address.
func (p pick) rules(bit uint32) []nft.Rule {
	rules := []nft.Rule{nft.NewRule(append(p.class.statements(bit), p.send(p.count, p.by)...)...)}
	if p.count > 1 {
		rules = append(rules, nft.NewRule(p.send(1, nft.AtRandom)...))
	}
	return append(rules, nft.NewRule(nft.Drop{}))
}

// send chooses one of the pool's first n slots. Only packets with ports match a frontend, but
// nft requires a match on the protocol before a port
// is rewritten. The set of protocols is a named one, since an anonymous one in every chain
// would make all changes slower.
func (p pick) send(n uint32, by nft.Generator) []nft.Statement {
	return []nft.Statement{nft.Lookup{Set: setL4}, nft.DNATMap{Map: p.slots, Number: nft.Numgen{Mod: n, Offset: p.first(), By: by}}}
}

// answer is the Action of a frontend for one origin, in terms of this layout.
type answer struct {
	verdict model.Verdict
	pool    *model.Pool // nil unless the verdict is Balance
	second  bool        // the pool is the frontend's second one
	snat    bool
}

// seenBy returns the answer that origin o gets from a chain of class c.
func (a answer) seenBy(o model.Origin, c class) answer {
	a.snat = a.verdict == model.Balance && c.masquerades(o)
	return a
}

// answers derives the three answers of a frontend. The first pool, in the order
// of origins, gets the lower half of the slots.
func (p *portCompiler) answers(f *model.Frontend) (as [model.Origins]answer) {
	var pools []*model.Pool
	for o, act := range f.On {
		as[o].verdict = act.Verdict
		if act.Verdict != model.Balance {
			continue
		}
		bank := slices.Index(pools, act.Pool)
		if bank < 0 {
			bank = len(pools)
			pools = append(pools, act.Pool)
		}
		if bank > 1 {
			p.gap(f, fmt.Sprintf("a third set of endpoints, for packets from %s: dropped", model.Origin(o)))
			as[o].verdict = model.Drop
			continue
		}
		as[o].pool, as[o].second, as[o].snat = act.Pool, bank == 1, act.SNAT
	}
	return as
}

// common chooses the class of the answer that all origins look up: one that is right for
// packets from outside and, if possible, for pods, too.
func common(as [model.Origins]answer) class {
	outside, pod := as[model.FromOutside], as[model.FromPod]
	switch {
	case !outside.snat:
		return noSNAT
	case pod.pool == outside.pool && pod.snat:
		return snat
	}
	return asIs
}

// value returns the value of the answer for origin o with a chain of class c, and emits the
// chain.
func (p *portCompiler) value(f *model.Frontend, as [model.Origins]answer, o model.Origin, c class) nft.Value {
	a := as[o]
	switch a.verdict {
	case model.Reject:
		return p.goTo(chainReject)
	case model.Drop:
		return nft.DropValue(p.comment)
	}
	if p.port.SessionAffinity > 0 {
		return p.goTo(p.affinity(f, a.pool, c, a.second))
	}
	by, port := p.generator()
	chain := p.pick(pick{slots: slotsOf(f), class: c, second: a.second, count: sizeOf(a.pool), by: by, port: port})
	p.once(chain.keys[p.port.ID.Family], chain.bodies[p.port.ID.Family])
	return p.goTo(chain.name)
}

func (p *portCompiler) goTo(chain string) nft.Value {
	return nft.GotoValue(chain, p.comment)
}

// pick returns a pick chain, cached unless it is for round robin or more than keptPicks
// endpoints.
func (c *Compiler) pick(p pick) *pickChain {
	if known, ok := c.picks.Load(p); ok {
		return known.(*pickChain)
	}
	made := newPickChain(p.name(), p.rules(c.bit))
	if p.count > keptPicks || p.port != "" {
		return made
	}
	known, _ := c.picks.LoadOrStore(p, made)
	return known.(*pickChain)
}

func newPickChain(name string, rules []nft.Rule) *pickChain {
	made := &pickChain{name: name}
	for _, f := range model.Families() {
		made.keys[f], made.bodies[f] = table.ChainObject(f, name, nft.Hook{}, rules)
	}
	return made
}

// sizeOf returns the number of a pool's slots that fit into its bank.
func sizeOf(p *model.Pool) uint32 { return uint32(min(p.Size(), bankSize)) }

// slots emits the numbered endpoints of a frontend.
func (p *portCompiler) slots(f *model.Frontend, as [model.Origins]answer) {
	var done [2]bool
	for _, a := range as {
		bank := 0
		if a.second {
			bank = 1
		}
		if a.pool == nil || done[bank] {
			continue
		}
		done[bank] = true
		if p.port.SessionAffinity > 0 {
			p.affineSlots(f, a.pool, a.second)
			continue
		}
		k := element(slotsOf(f), p.port.ID.Proto, f)
		for i := range int(sizeOf(a.pool)) {
			k.Slot = uint16(bank*bankSize + i)
			v := nft.EndpointValue(a.pool.Slot(i).Addr)
			v.Body = p.ofEndpoint
			p.emit(k, v)
		}
	}
}

func (c *Compiler) Slots(have func(nft.Key) (nft.Value, bool), proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort {
	f := model.Frontend{At: at}
	if at.Addr().IsUnspecified() {
		f.Kind = model.KindNodePort
	}
	maps := mapsOf(&f)
	v, ok := have(element(maps[from], proto, &f))
	if !ok {
		v, ok = have(element(maps[model.FromOutside], proto, &f))
	}
	if !ok || v.Body == nil {
		return nil
	}
	chain, ok := parsePick(v.Body.Goto)
	if !ok {
		var affine affinePick
		if affine, ok = parseAffinePick(v.Body.Goto); ok {
			chain = affine.pick
		}
	}
	if !ok || chain.slots != slotsOf(&f) && chain.slots != affinitySlotsOf(&f) {
		return nil
	}
	endpoints := make([]netip.AddrPort, 0, min(chain.count, bankSize))
	k := element(chain.slots, proto, &f)
	for i := range chain.count {
		k.Slot = uint16(chain.first() + i)
		v, ok := have(k)
		if ok && chain.slots == affinitySlotsOf(&f) {
			v, ok = have(handleElement(chain.endpoints(), k, v))
		}
		if !ok {
			break
		}
		endpoints = append(endpoints, v.Endpoint(k.Family))
	}
	return endpoints
}
