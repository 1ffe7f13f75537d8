// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// external returns the chain that gives each origin its answer. Frontends with the
// same answers share it.
func (p *portCompiler) external(on [model.Origins]model.Action) string {
	for _, c := range p.externals {
		if sameActions(c.on, on) {
			return c.name
		}
	}
	name := prefixExternal + p.hash
	if n := len(p.externals); n > 0 {
		name = prefixExternal + hash(p.hash, strconv.Itoa(n))
	}
	p.externals = append(p.externals, &externalChain{on, name})
	return name
}

func sameActions(a, b [model.Origins]model.Action) bool {
	for o := range a {
		if a[o].Verdict != b[o].Verdict || a[o].Pool != b[o].Pool || a[o].SNAT != b[o].SNAT {
			return false
		}
	}
	return true
}

// emitExternals emits them. Origins that are not balanced pass through and
// meet the filter table.
func (p *portCompiler) emitExternals() {
	for _, c := range p.externals {
		emitChain(p.chain(xtables.NAT, c.name), p.emit, p.externalRules(c.on)...)
	}
}

func (p *portCompiler) externalRules(on [model.Origins]model.Action) (rules []xtables.Rule) {
	last := on[model.FromOutside]
	if sameActions(on, [...]model.Action{last, last, last}) {
		return p.actionRules(model.FromOutside, xtables.Rule{}, last)
	}
	for o, from := range p.origins() {
		rules = append(rules, p.actionRules(o, from, on[o])...)
	}
	return rules
}

// originMark is what one origin gets.
func (p *portCompiler) actionRules(o model.Origin, from xtables.Rule, a model.Action) (rules []xtables.Rule) {
	if !balances(a) {
		if o == model.FromOutside {
			return nil
		}
		from.Target = xtables.Return
		return append(rules, from)
	}
	to := map[model.Origin]string{model.FromPod: "pod traffic for ", model.FromHost: "LOCAL traffic for ", model.FromOutside: "traffic for "}[o]
	to += p.name + " external destinations"
	if a.SNAT {
		mark := from
		mark.Comment, mark.Target = "masquerade "+to, markMasq
		rules = append(rules, mark)
	}
	if o == model.FromHost {
		to = "route " + to
	}
	from.Comment, from.Target = to, xtables.Jump{Chain: p.usePool(a.Pool).name}
	if o == model.FromOutside {
		from.Comment = ""
	}
	return append(rules, from)
}

// firewall emits the chain that lets the clients inside source ranges on to a
// target, and returns the way there.
func (p *portCompiler) firewall(f *model.Frontend, target xtables.Target) xtables.Target {
	name := p.firewallName(f)
	var rules []xtables.Rule
	for _, r := range f.Allow {
		rules = append(rules, xtables.Rule{Src: xtables.Within(r), Comment: p.comment(f), Target: target})
	}
	rules = append(rules, xtables.Rule{Comment: "other traffic to " + p.name + " will be dropped by " + chainFirewall})
	emitChain(p.chain(xtables.NAT, name), p.emit, rules...)
	return xtables.Jump{Chain: name}
}

// firewallName is kube-proxy's for the port's first restricted frontend; each may
// have other ranges here, as its own address may be one.
func (p *portCompiler) firewallName(f *model.Frontend) string {
	first := slices.IndexFunc(p.port.Frontends, func(o model.Frontend) bool { return o.Restricted })
	if p.port.Frontends[first].At == f.At {
		return prefixFirewall + p.hash
	}
	return prefixFirewall + hash(p.hash, f.At.String())
}

// restrict emits what the filter table does with clients outside of source ranges:
// a balanced client inside has another destination by then. Clients inside that
// are not balanced must get past.
func (p *portCompiler) dropOutside(f *model.Frontend, refused bool) {
	at := p.leaf(firewallTree, f)
	for _, r := range f.Allow {
		if r.Bits() == 0 {
			return // the range is everything
		}
	}
	if refused {
		for _, prefix := range f.Allow {
			r := p.match(f)
			r.Src, r.Target = xtables.Within(prefix), xtables.Return
			emitRule(at, r, p.emit)
		}
	}
	r := p.match(f)
	r.Comment, r.Target = p.name+" traffic not accepted by "+p.firewallName(f), xtables.Drop
	emitRule(at, r, p.emit)
}

// emitPools emits the chains that choose an endpoint. Only an endpoint on this
// node, which may be its own client (hairpin), and one that keeps clients has a
// chain of its own: thousands of others need no more than a rule. A comment takes
// 288 bytes of the kernel, which copies them for each change in the legacy
// variant: a chain has one, on its first rule. Where that marks what is sent to
// the cluster IP, as usual, it tells name, address and endpoints on one line, and
// the rule that leads here has none.
func (p *portCompiler) emitPools() {
	own := map[netip.AddrPort]bool{}
	for _, c := range p.pools {
		if !c.used {
			continue
		}
		rules := c.masquerade
		endpoints := sorted(c.pool)
		if p.port.SessionAffinity > 0 {
			rules = append(rules, p.affinityRules(endpoints)...)
		}
		rules = append(rules, p.balanceRules(endpoints)...)
		if len(rules) > 0 {
			rules[0].Comment = p.describe(c, endpoints)
		}
		emitChain(p.chain(xtables.NAT, c.name), p.emit, rules...)
		for _, e := range endpoints {
			if p.hasOwnChain(e) && !own[e.Addr] {
				own[e.Addr] = true
				p.endpoint(e)
			}
		}
	}
}

// hasOwnChain reports whether an endpoint has a chain of its own.
func (p *portCompiler) hasOwnChain(e model.Endpoint) bool {
	return e.Hairpins() || p.port.SessionAffinity > 0
}

// affinityRules are the rules that send clients to where they were before.
func (p *portCompiler) affinityRules(endpoints []model.Endpoint) (rules []xtables.Rule) {
	for _, e := range endpoints {
		name := endpointChain(p.port.ID, e.Addr)
		rules = append(rules, xtables.Rule{
			Matches: []xtables.Match{xtables.Recent{Name: name, Seconds: max(uint32(p.port.SessionAffinity.Seconds()), 1)}},
			Target:  xtables.Jump{Chain: name},
		})
	}
	return rules
}

// balanceRules are the rules that choose evenly: the first of n with the chance of
// 1/n, the next of the n-1 left with 1/(n-1), and so on.
func (p *portCompiler) balanceRules(endpoints []model.Endpoint) (rules []xtables.Rule) {
	for i, e := range endpoints {
		r := p.dnat(e)
		if p.hasOwnChain(e) {
			r = xtables.JumpTo(endpointChain(p.port.ID, e.Addr))
		}
		if left := len(endpoints) - i; left > 1 {
			r = r.With(xtables.OneOf(left))
		}
		rules = append(rules, r)
	}
	return rules
}

// describe names endpoints for people, as many as a comment can hold.
func (p *portCompiler) describe(c *poolChain, endpoints []model.Endpoint) string {
	const room = xtables.MaxComment - len(" and 12345 more")
	b := strings.Builder{}
	b.WriteString(p.name)
	if len(c.masquerade) > 0 {
		b.WriteString(" cluster IP")
	}
	b.WriteString(" ->")
	for i, e := range endpoints {
		next := e.Addr.String()
		if i > 0 && b.Len()+1+len(next) > room {
			b.WriteString(" and " + strconv.Itoa(len(endpoints)-i) + " more")
			break
		}
		b.WriteString(" " + next)
	}
	return b.String()
}

// endpoint emits the chain of one endpoint.
func (p *portCompiler) endpoint(e model.Endpoint) {
	var rules []xtables.Rule
	name := endpointChain(p.port.ID, e.Addr)
	if e.Hairpins() {
		rules = append(rules, xtables.Rule{Src: xtables.Address(e.Addr.Addr()), Comment: p.name, Target: markMasq})
	}
	r := p.dnat(e)
	r.Comment = p.name
	if p.port.SessionAffinity > 0 {
		r = r.With(xtables.Recent{Name: name, Set: true})
	}
	emitChain(p.chain(xtables.NAT, name), p.emit, append(rules, r)...)
}

func (p *portCompiler) dnat(e model.Endpoint) xtables.Rule {
	return xtables.Rule{Proto: p.port.ID.Proto, Target: xtables.DNAT{To: e.Addr}}
}
