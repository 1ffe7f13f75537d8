package nftables

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// answer is what one origin gets from a front, in the terms of this layout.
type answer struct {
	verdict model.Verdict
	pool    *model.Pool // nil unless the verdict is Balance
	second  bool        // the pool is the front's second one
	snat    bool
}

// seenBy is what origin o gets of an answer whose chain has class c.
func (a answer) seenBy(o model.Origin, c class) answer {
	a.snat = a.verdict == model.Balance && c.masks(o)
	return a
}

// answers derives the three answers of a front. The first pool, in the order
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

// common chooses the class of the answer that all origins look at. It must be
// right for packets from outside; where there is a choice it is the one that
// is right for pods, too.
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

// value makes the element for origin o with a chain of class c, and emits the
// chain.
func (p *portCompiler) value(f *model.Frontend, as [model.Origins]answer, o model.Origin, c class) Value {
	a := as[o]
	switch a.verdict {
	case model.Reject:
		return p.goTo(chainRefuse)
	case model.Drop:
		return Value{Body: &Body{Verdict: VerdictDrop, Comment: p.comment}}
	}
	if p.port.SessionAffinity > 0 {
		return p.goTo(p.affinity(f, a.pool, c, a.second))
	}
	chain := p.pick(pick{slots: slotsOf(f), class: c, second: a.second, count: uint32(len(endpointsOf(a.pool)))})
	p.once(chainKey(p.port.ID.Family, chain.name), chain.bodies[p.port.ID.Family])
	return p.goTo(chain.name)
}

func (p *portCompiler) goTo(chain string) Value {
	return Value{Body: &Body{Verdict: VerdictGoto, Goto: chain, Comment: p.comment}}
}

// pick returns a pick chain, made once if it is one to keep.
func (c *Compiler) pick(p pick) *pickChain {
	if known, ok := c.picks.Load(p); ok {
		return known.(*pickChain)
	}
	made := newPickChain(p.name(), p.rules(c.bit))
	if p.count > keptPicks {
		return made
	}
	known, _ := c.picks.LoadOrStore(p, made)
	return known.(*pickChain)
}

func newPickChain(name string, rules []Rule) *pickChain {
	made := &pickChain{name: name}
	for _, f := range model.Families() {
		made.bodies[f] = Value{Body: &Body{Chain: newChain(f, Hook{}, rules)}}
	}
	return made
}

// endpointsOf are the endpoints of a pool that there is room for.
func endpointsOf(p *model.Pool) []model.Endpoint {
	return p.Endpoints[:min(len(p.Endpoints), bankSize)]
}

// slots emits the numbered endpoints of a front.
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
		for i, e := range endpointsOf(a.pool) {
			k.Slot = uint16(bank*bankSize + i)
			p.emit(k, endpointValue(e.Addr))
		}
	}
}

// Slots implements dataplane.Slotter.
func (c *Compiler) Slots(have func(Key) (Value, bool), proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort {
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
	var endpoints []netip.AddrPort
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
		endpoints = append(endpoints, v.endpoint(k.Family))
	}
	return endpoints
}
