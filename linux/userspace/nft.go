package userspace

import (
	"strings"

	"github.com/tandem-proxy/tandem/linux/nftables"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Where there is no iptables the same chains are in a table of nftables for each
// family. Only entries differ: they are no rules but elements of sets and maps, in
// which the rule of their chain looks a packet up, however many there are.
//
//	chain KUBE-PORTALS-CONTAINER {
//		dnat ip addr . port to ip daddr . meta l4proto . th dport map @portals-container
//	}
//	map portals-container {
//		elements = { 10.96.0.10 . tcp . 80 comment "default/web" : 169.254.84.1 . 40000 }
//	}

// nftTable is the name of our tables, "ip" and "ip6".
const nftTable = "tandem-userspace"

// nftMaps are the maps of the chains whose entries all lead to the relay address.
var nftMaps = map[string]nftables.SetID{
	chainPod: nftables.PortalsPod, chainContainer: nftables.PortalsContainer, chainHost: nftables.PortalsHost,
	chainNodePod: nftables.NodePortPod, chainNodeContainer: nftables.NodePortContainer, chainNodeHost: nftables.NodePortHost,
}

// nftHooks are the chains in the system's places.
var nftHooks = map[string]nftables.Point{xtables.PreRouting: nftables.PreRouting, xtables.Output: nftables.LocalOut}

// behindOthers is how much later than destination NAT the last chains come.
const behindOthers = 10

// nftSets are all sets and maps of a table.
func nftSets() []nftables.SetID {
	ids := []nftables.SetID{nftables.Guarded, nftables.Allowed, nftables.ClusterIPs}
	for _, chain := range entryChains {
		if id, ok := nftMaps[chain]; ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// nftObjects emits what an object of ours is in nftables; rules are its content.
func nftObjects(k Key, rules []xtables.Rule, emit func(nftables.Key, nftables.Value)) {
	switch k.Kind {
	case KindTable:
		emit(nftables.TableObject(k.Family))
		for _, id := range nftSets() {
			emit(nftables.SetObject(k.Family, id))
		}
	case KindChain:
		emit(nftables.ChainObject(k.Family, k.Chain, nftables.Hook{}, nftRules(k.Chain, rules)))
	case KindJump:
		hook, name := nftables.Entrance(nftHooks[k.Chain]), strings.ToLower(k.Chain)
		if k.Late {
			hook.Priority += behindOthers
			name += "-last"
		}
		emit(nftables.ChainObject(k.Family, name, hook, nftRules(k.Chain, rules)))
	case KindEntry:
		rules = append(rules, xtables.Rule{}) // to delete it, its key is enough
		emit(nftEntry(k, rules[0]).Object())
	}
}

// digest stands for the rules of a chain or a jump in nftables.
func digest(k Key, rules []xtables.Rule) (d uint64) {
	nftObjects(k, rules, func(_ nftables.Key, v nftables.Value) { d = v.Body.Chain.Digest })
	return d
}

// nftRules returns the rules of a chain: those that look its entries up, or the
// given ones.
func nftRules(chain string, rules []xtables.Rule) (all []nftables.Rule) {
	rule := func(comment string, s ...nftables.Statement) {
		all = append(all, nftables.Rule{Statements: s, Comment: comment})
	}
	id, isMap := nftMaps[chain]
	switch {
	case isMap:
		rule("", nftables.SendToFound{Map: id})
	case chain == chainGuard:
		rule("outside of the source ranges", nftables.In{Set: nftables.Guarded}, nftables.In{Set: nftables.Allowed, Not: true},
			nftables.Jump{Chain: chainDrop})
	case chain == chainClosed:
		rule(sayClosed, nftables.In{Set: nftables.ClusterIPs}, nftables.Jump{Chain: chainRefuse})
	}
	for _, r := range rules {
		rule(r.Comment, nftStatements(r)...)
	}
	return all
}

// nftStatements returns a rule without a port as nftables has it.
func nftStatements(r xtables.Rule) (all []nftables.Statement) {
	if r.Src.Prefix.IsValid() {
		all = append(all, nftables.SourceIn{Prefix: r.Src.Prefix})
	}
	if r.Dst.Prefix.IsValid() {
		all = append(all, nftables.DestinationIn{Prefix: r.Dst.Prefix})
	}
	if r.In.Name != "" {
		name, some := strings.CutSuffix(r.In.Name, "+")
		all = append(all, nftables.InputIs{Name: name, Prefix: some})
	}
	if r.Proto != 0 {
		all = append(all, nftables.ProtocolIs{Proto: r.Proto})
	}
	for _, m := range r.Matches {
		switch m := m.(type) {
		case xtables.DstLocal:
			all = append(all, nftables.DestinationIsLocal{})
		case xtables.HasMark:
			all = append(all, nftables.MarkHas{Bit: m.Mask})
		}
	}
	switch to := r.Target.(type) {
	case xtables.DNAT:
		return append(all, nftables.SendTo{To: to.To})
	case xtables.Jump:
		return append(all, nftables.Jump{Chain: to.Chain})
	}
	return append(all, nftables.Return{})
}

// nftEntry returns the element for an entry, given as a rule.
func nftEntry(k Key, r xtables.Rule) nftables.Entry {
	e := nftables.Entry{Family: k.Family, Proto: k.Proto, At: k.At, Comment: r.Comment}
	switch id, isMap := nftMaps[k.Chain]; {
	case isMap:
		e.Set = id
		if dnat, ok := r.Target.(xtables.DNAT); ok {
			e.To = dnat.To
		} else if end := ends[r.Chain()]; end != 0 {
			e.To = relayAddrPort(k.Family, end)
		}
	case k.Chain == chainClosed:
		e.Set = nftables.ClusterIPs
	case k.From.IsValid():
		e.Set, e.From = nftables.Allowed, k.From
	default:
		e.Set = nftables.Guarded
	}
	return e
}

// nftRule is the reverse of nftEntry.
func nftRule(e nftables.Entry) (chain string, r xtables.Rule) {
	r = xtables.Rule{Proto: e.Proto, Ports: xtables.Port(e.At.Port()), Comment: e.Comment}
	if !e.At.Addr().IsUnspecified() {
		r.Dst = xtables.Address(e.At.Addr())
	}
	switch e.Set {
	case nftables.ClusterIPs:
		r.Target = xtables.Jump{Chain: chainRefuse}
		return chainClosed, r
	case nftables.Guarded:
		r.Target = xtables.Jump{Chain: chainDrop}
		return chainGuard, r
	case nftables.Allowed:
		r.Target, r.Src = xtables.Return, xtables.Within(e.From)
		return chainGuard, r
	}
	for name, id := range nftMaps {
		if id == e.Set {
			chain = name
		}
	}
	r.Target = xtables.DNAT{To: e.To}
	for name, port := range ends {
		if e.To == relayAddrPort(e.Family, port) {
			r.Target = xtables.Jump{Chain: name}
		}
	}
	return chain, r
}
