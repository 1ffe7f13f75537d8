// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// portCompiler compiles one port.
type portCompiler struct {
	branches *branchCache
	host     *model.Host
	port     *model.Port
	emit     func(Key, Value)
	name     string       // for comments
	hash     string       // for names of chains
	pods     xtables.Rule // see podMatch
	gaps     []model.Gap

	pools     []*poolChain
	externals []*externalChain
}

// poolChain is a chain that balances over a pool.
type poolChain struct {
	pool       *model.Pool
	name       string
	masquerade []xtables.Rule // rules that mark connections to cluster IPs for masquerading
	used       bool
}

// externalChain is a chain that applies the action for each origin.
type externalChain struct {
	on   [model.Origins]model.Action
	name string
}

func (p *portCompiler) gap(f *model.Frontend, detail string) {
	p.gaps = append(p.gaps, model.Gap{Frontend: f.At, Detail: detail})
}

func (p *portCompiler) chain(t xtables.Table, name string) chainID {
	return chainID{Family: p.port.ID.Family, Table: t, Chain: name}
}

// namePools names the chains of the port's pools: KUBE-SVL- for the pool of policy Local,
// KUBE-SVC- for the other.
func (p *portCompiler) namePools() {
	local := p.port.PoolOf(model.Local)
	for i, pool := range p.port.Pools() {
		prefix := prefixCluster
		if pool == local {
			prefix = prefixLocal
		}
		name := prefix + p.hash
		if slices.ContainsFunc(p.pools, func(c *poolChain) bool { return c.name == name }) {
			name = prefix + hash(p.hash, name, string(rune('0'+i))) // a third pool, which no policy produces
		}
		p.pools = append(p.pools, &poolChain{pool: pool, name: name})
	}
}

// usePool returns the chain of a pool and marks it as used.
func (p *portCompiler) usePool(pool *model.Pool) *poolChain {
	i := slices.IndexFunc(p.pools, func(c *poolChain) bool { return c.pool == pool })
	p.pools[i].used = true
	return p.pools[i]
}

// isNodePort reports whether a frontend has the addresses of the host.
func isNodePort(f *model.Frontend) bool { return f.Kind == model.KindNodePort }

// match matches packets to a frontend.
func (p *portCompiler) match(f *model.Frontend) xtables.Rule {
	r := xtables.Rule{Proto: p.port.ID.Proto, Ports: xtables.Port(f.At.Port())}
	if !isNodePort(f) {
		r.Dst = xtables.Address(f.At.Addr())
	}
	return r
}

// leaf emits the branches to a frontend in a tree, and returns the leaf chain.
func (p *portCompiler) leaf(t *tree, f *model.Frontend) chainID {
	if isNodePort(f) {
		return t.byPort(p.port.ID.Family, p.port.ID.Proto, f.At.Port(), p.emit)
	}
	return t.byAddress(f.At.Addr(), p.branches, p.emit)
}

func balances(a model.Action) bool { return a.Verdict == model.Balance }

// comment names a frontend in its rules.
func (p *portCompiler) comment(f *model.Frontend) string {
	if isNodePort(f) {
		return p.name
	}
	return p.name + " " + [...]string{"cluster IP", "external IP", "loadbalancer IP"}[f.Kind]
}

// rejectTree is where the filter table rejects a frontend's clients.
func rejectTree(f *model.Frontend) *tree {
	switch f.Kind {
	case model.KindClusterIP:
		return clusterTree
	case model.KindNodePort:
		return unservedTree
	}
	return externalTree
}

// podMatch matches packets of this node's pods. It is empty if they cannot be detected, or
// if the pod range is all addresses: see actions.
func podMatch(f model.Family, pods model.PodMatch) xtables.Rule {
	arriving, _ := xtables.FromPods(f, pods)
	if len(arriving) == 0 {
		return xtables.Rule{}
	}
	return arriving[0] // there is one per family
}

// matchesAll reports whether a podMatch is empty.
func matchesAll(r xtables.Rule) bool { return !r.Src.Prefix.IsValid() && r.In.Name == "" }

// markMasq marks packets to be masqueraded.
var markMasq = xtables.Jump{Chain: chainMark}

// actions returns a frontend's actions by origin. If every packet counts as a pod's,
// all are those for pods.
func (p *portCompiler) actions(f *model.Frontend) [model.Origins]model.Action {
	on := f.On
	if p.host.Pods.Known(p.port.ID.Family) && matchesAll(p.pods) { // the pod range is all addresses
		on[model.FromHost], on[model.FromOutside] = on[model.FromPod], on[model.FromPod]
	}
	return on
}

// origins are the matches of origins in the order of their rules: pods, then the
// host; all other packets are from outside.
func (p *portCompiler) origins() func(func(model.Origin, xtables.Rule) bool) {
	return func(yield func(model.Origin, xtables.Rule) bool) {
		if pod := p.pods; !matchesAll(pod) && !yield(model.FromPod, pod) {
			return
		}
		if yield(model.FromHost, xtables.Rule{Matches: []xtables.Match{xtables.SrcLocal{}}}) {
			yield(model.FromOutside, xtables.Rule{})
		}
	}
}

// external returns the chain that applies the actions for each origin. Frontends with
// the same actions share it.
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

// externalRules returns the rules of a KUBE-EXT- chain. Packets of origins that are not balanced
// return, and the filter table rejects or drops them.
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

// actionRules returns the rules for one origin.
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

// firewall emits the chain that passes clients inside the source ranges to a target,
// and returns the jump to it.
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

// firewallName is kube-proxy's for the port's first restricted frontend. Others have
// names of their own, since here the ranges may differ by frontend.
func (p *portCompiler) firewallName(f *model.Frontend) string {
	first := slices.IndexFunc(p.port.Frontends, func(o model.Frontend) bool { return o.Restricted })
	if p.port.Frontends[first].At == f.At {
		return prefixFirewall + p.hash
	}
	return prefixFirewall + hash(p.hash, f.At.String())
}

// dropOutside emits the rules of the filter table that drop clients outside of the
// source ranges. Balanced connections have another destination by then; clients
// inside the ranges that are not balanced need a RETURN.
func (p *portCompiler) dropOutside(f *model.Frontend, reject bool) {
	at := p.leaf(firewallTree, f)
	for _, r := range f.Allow {
		if r.Bits() == 0 {
			return // the range is everything
		}
	}
	if reject {
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

// emitPools emits the chains that choose an endpoint. Only endpoints that may be their own
// clients (hairpin: pods of this node without its address), and those with session affinity, have
// chains of their own; all others are one rule. A comment takes 288 bytes of
// kernel memory, which the legacy variant copies for each change: so a chain has one,
// on its first rule, with the name and the endpoints. If that rule matches the
// cluster IP, too, as usual, the rule that jumps here has no comment.
func (p *portCompiler) emitPools() {
	own := map[netip.AddrPort]bool{}
	for _, c := range p.pools {
		if !c.used {
			continue
		}
		endpoints := slices.Clone(c.pool.Endpoints)
		slices.SortFunc(endpoints, func(a, b model.Endpoint) int { return a.Addr.Compare(b.Addr) }) // the same order after a restart
		p.emit(Key{chainID: p.chain(xtables.NAT, c.name)}, p.poolRules(c, endpoints))
		for _, e := range endpoints {
			if p.hasOwnChain(e) && !own[e.Addr] {
				own[e.Addr] = true
				p.endpoint(e)
			}
		}
	}
}

// hasOwnChain reports whether an endpoint has a KUBE-SEP- chain.
func (p *portCompiler) hasOwnChain(e model.Endpoint) bool {
	return p.host.NeedsHairpinSNAT(e) || p.port.SessionAffinity > 0
}

// poolRules are the rules of a pool's chain.
func (p *portCompiler) poolRules(c *poolChain, endpoints []model.Endpoint) xtables.Rules {
	b, comment := xtables.NewBuilder(512+100*len(endpoints)), p.describe(c, endpoints)
	add := func(r *xtables.Rule) {
		r.Comment, comment = comment, ""
		b.Add(r)
	}
	for i := range c.masquerade {
		add(&c.masquerade[i])
	}
	if p.port.SessionAffinity > 0 {
		p.affinityRules(endpoints, add)
	}
	p.balanceRules(endpoints, add)
	return b.Rules()
}

// affinityRules are the rules that send recent clients to their previous endpoint.
func (p *portCompiler) affinityRules(endpoints []model.Endpoint, add func(*xtables.Rule)) {
	for _, e := range endpoints {
		name := endpointChain(p.port.ID, e.Addr)
		add(&xtables.Rule{
			Matches: []xtables.Match{xtables.Recent{Name: name, Seconds: max(uint32(p.port.SessionAffinity.Seconds()), 1)}},
			Target:  xtables.Jump{Chain: name},
		})
	}
}

// balanceRules are the rules that choose by weight: of n equal endpoints the first with
// probability 1/n, the next of the n-1 left with 1/(n-1), and so on.
func (p *portCompiler) balanceRules(endpoints []model.Endpoint, add func(*xtables.Rule)) {
	left := 0
	for _, e := range endpoints {
		left += weightOf(e)
	}
	var r xtables.Rule // reused, as there may be 30,000
	chance := make([]xtables.Match, 1)
	for i, e := range endpoints {
		r = p.dnat(e)
		if p.hasOwnChain(e) {
			r = xtables.JumpTo(endpointChain(p.port.ID, e.Addr))
		}
		if i < len(endpoints)-1 {
			chance[0] = xtables.PartOf(weightOf(e), left)
			r.Matches = chance
		}
		left -= weightOf(e)
		add(&r)
	}
}

// weightOf returns the weight of an endpoint, at least 1.
func weightOf(e model.Endpoint) int { return max(int(e.Weight), 1) }

// reportScheduler reports a scheduler that is not supported.
func (p *portCompiler) reportScheduler() {
	if s := p.port.Scheduler; s != model.DefaultScheduler && s != model.Random {
		p.gaps = append(p.gaps, model.Gap{Detail: "endpoints are chosen at random: iptables has no scheduler " + s.String()})
	}
}

// describe lists endpoints, as many as fit into a comment.
func (p *portCompiler) describe(c *poolChain, endpoints []model.Endpoint) string {
	const room = xtables.MaxComment - len(" and 12345 more")
	b := append(make([]byte, 0, xtables.MaxComment), p.name...)
	if len(c.masquerade) > 0 {
		b = append(b, " cluster IP"...)
	}
	b = append(b, " ->"...)
	for i, e := range endpoints {
		before := len(b)
		b = e.Addr.AppendTo(append(b, ' '))
		if i > 0 && len(b) > room {
			b = fmt.Appendf(b[:before], " and %d more", len(endpoints)-i)
			break
		}
	}
	return string(b)
}

// endpoint emits the chain of one endpoint.
func (p *portCompiler) endpoint(e model.Endpoint) {
	var rules []xtables.Rule
	name := endpointChain(p.port.ID, e.Addr)
	if p.host.NeedsHairpinSNAT(e) {
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
