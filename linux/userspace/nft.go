// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"math"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Without iptables the same chains are in a table of nftables for each family. Only entries
// differ: they are not rules but elements of sets and maps, which one rule per chain looks up.
//
//	chain KUBE-PORTALS-CONTAINER {
//		dnat ip addr . port to ip daddr . meta l4proto . th dport map @portals-container
//	}
//	map portals-container {
//		elements = { 10.96.0.10 . tcp . 80 comment "default/web" : 169.254.84.1 . 40000 }
//	}

// The sets of our tables in nftables.
var (
	portalFields   = []nft.Field{nft.Daddr, nft.L4Proto, nft.Dport}
	nodePortFields = []nft.Field{nft.L4Proto, nft.Dport} // node ports have no address of their own

	nftClusterIPs = &nft.Set{Name: "cluster-ips", Key: []nft.Field{nft.Daddr}}

	// nftSourceRanges are frontends with source ranges. Its name is an older one: another would make
	// an upgrade create the table again, and relays lose the ports on which clients wait.
	nftSourceRanges = &nft.Set{Name: "guarded", Key: portalFields}

	// nftAllowed holds frontends with a source range. A rule looks up the protocol as
	// stored by connection tracking, in network order: Linux 6.12 rejects nft's byte
	// order conversion for a single byte.
	nftAllowed = &nft.Set{
		Name: "allowed", Key: append(portalFields[:3:3], nft.Saddr), Interval: true,
		Loads: []nft.Field{nft.Daddr, nft.CtProto, nft.Dport, nft.Saddr},
	}
)

// nftMaps are the maps of the chains whose entries all redirect to the relay address.
var nftMaps = map[string]*nft.Set{
	chainPod:           {Name: "portals-pod", Key: portalFields, Data: nft.DataEndpoint},
	chainContainer:     {Name: "portals-container", Key: portalFields, Data: nft.DataEndpoint},
	chainHost:          {Name: "portals-host", Key: portalFields, Data: nft.DataEndpoint},
	chainNodePod:       {Name: "nodeport-pod", Key: nodePortFields, Data: nft.DataEndpoint},
	chainNodeContainer: {Name: "nodeport-container", Key: nodePortFields, Data: nft.DataEndpoint},
	chainNodeHost:      {Name: "nodeport-host", Key: nodePortFields, Data: nft.DataEndpoint},
}

// nftTable is our table in nftables. The number in its comment must change whenever
// the meaning of a set or a rule does.
var nftTable = nft.NewTable("tandem-userspace", nft.Owner, nft.Owner+" (layout 2)", nftSets()...)

// nftHooks are the hooks in place of the built-in chains.
var nftHooks = map[string]nft.Point{xtables.PreRouting: nft.PreRouting, xtables.Output: nft.LocalOut}

// behindOthers is the distance in priority from destination NAT to the last chains.
const behindOthers = 10

// nftSets are all sets and maps of a table.
func nftSets() []*nft.Set {
	sets := []*nft.Set{nftClusterIPs, nftSourceRanges, nftAllowed}
	for _, chain := range entryChains {
		if s, ok := nftMaps[chain]; ok {
			sets = append(sets, s)
		}
	}
	return sets
}

// nftObjects emits the nftables objects of an object with these rules.
func nftObjects(k Key, rules []xtables.Rule, emit func(nft.Key, nft.Value)) {
	switch k.Kind {
	case KindTable:
		emit(nftTable.Object(k.Family))
		for _, s := range nftTable.Sets() {
			emit(nft.SetObject(k.Family, s))
		}
	case KindChain:
		emit(nftTable.ChainObject(k.Family, k.Chain, nft.Hook{}, nftRules(k.Chain, rules)))
	case kindJump:
		hook, name := nft.NATHook(nftHooks[k.Chain]), strings.ToLower(k.Chain)
		if k.Late {
			hook.Priority += behindOthers
			name += "-last"
		}
		emit(nftTable.ChainObject(k.Family, name, hook, nftRules(k.Chain, rules)))
	case kindEntry:
		rules = append(rules, xtables.Rule{}) // a deletion needs the key only
		emit(element(k, rules[0]))
	}
}

// digest returns the hash of the rules of a chain or a jump in nftables.
func digest(k Key, rules []xtables.Rule) (d uint64) {
	nftObjects(k, rules, func(_ nft.Key, v nft.Value) { d = v.Body.Chain.Digest })
	return d
}

// nftRules returns the rules of a chain: the lookup of its entries, or the given rules.
func nftRules(chain string, rules []xtables.Rule) (all []nft.Rule) {
	rule := func(comment string, s ...nft.Statement) {
		all = append(all, nft.Rule{Statements: s, Comment: comment})
	}
	id, isMap := nftMaps[chain]
	switch {
	case isMap:
		rule("", nft.DNATMap{Map: id})
	case chain == chainGuard:
		rule("not in source ranges", nft.Lookup{Set: nftSourceRanges}, nft.Lookup{Set: nftAllowed, Not: true},
			nft.Jump{Chain: chainDrop})
	case chain == chainClosed:
		rule(sayClosed, nft.Lookup{Set: nftClusterIPs}, nft.Jump{Chain: chainReject})
	}
	for _, r := range rules {
		rule(r.Comment, nftStatements(r)...)
	}
	return all
}

// nftStatements returns the statements of a rule, which matches no port.
func nftStatements(r xtables.Rule) (all []nft.Statement) {
	if r.Src.Prefix.IsValid() {
		all = append(all, nft.SourceIn{Prefix: r.Src.Prefix})
	}
	if r.Dst.Prefix.IsValid() {
		all = append(all, nft.DestinationIn{Prefix: r.Dst.Prefix})
	}
	if r.In.Name != "" {
		name, some := strings.CutSuffix(r.In.Name, "+")
		all = append(all, nft.IifName{Name: name, Prefix: some})
	}
	if r.Proto != 0 {
		all = append(all, nft.L4ProtoIs{Proto: r.Proto})
	}
	for _, m := range r.Matches {
		switch m := m.(type) {
		case xtables.DstLocal:
			all = append(all, nft.FibLocal{})
		case xtables.HasMark:
			all = append(all, nft.MarkHas{Bit: m.Mask})
		}
	}
	switch to := r.Target.(type) {
	case xtables.DNAT:
		return append(all, nft.DNAT{To: to.To})
	case xtables.Jump:
		return append(all, nft.Jump{Chain: to.Chain})
	}
	return append(all, nft.Return{})
}

// element returns the element for an entry, given as a rule.
func element(k Key, r xtables.Rule) (n nft.Key, v nft.Value) {
	set, isMap := nftMaps[k.Chain]
	switch {
	case isMap:
		if dnat, ok := r.Target.(xtables.DNAT); ok {
			v = nft.EndpointValue(dnat.To)
		} else if end := ends[r.Chain()]; end != 0 {
			v = nft.EndpointValue(relayAddrPort(k.Family, end))
		}
	case k.Chain == chainClosed:
		set = nftClusterIPs
	case k.From.IsValid():
		set = nftAllowed
	default:
		set = nftSourceRanges
	}
	if n = nft.AddrPortKey(set, k.Proto, k.At); set == nftAllowed {
		n = n.Within(k.From)
	}
	if r.Comment != "" {
		v.Body = &nft.Body{Comment: r.Comment}
	}
	return n, v
}

// entryIn is the reverse of element; ok is false for objects that element never returns.
func entryIn(n nft.Key, v nft.Value) (k Key, to Target, port uint16, ok bool) {
	k = Key{Kind: kindEntry, Family: n.Family, Chain: chainGuard, Proto: n.Proto, At: n.AddrPort(), From: n.Prefix()}
	if n.Set == nftClusterIPs {
		k.Chain = chainClosed
	}
	for name, id := range nftMaps {
		if id == n.Set {
			k.Chain, port = name, v.Port
		}
	}
	comment := ""
	if v.Body != nil {
		comment = v.Body.Comment
	}
	if to, ok = targetOf(k, comment); !ok {
		return k, to, port, false
	}
	again, same := element(k, entryRule(k, to, port))
	return k, to, port, again == n && same.Equal(v)
}

// nftFound turns nftables objects into objects of this mode. A table with wrong sets
// or hooks is reported alone: it will be re-created.
func nftFound(have map[nft.Key]nft.Value) map[Key]found {
	put := map[Key]found{}
	for _, f := range model.Families() {
		known, right := nftKnown(f, have)
		table := Key{Kind: KindTable, Family: f}
		n, _ := nftTable.Object(f)
		if _, there := have[n]; !there {
			continue
		}
		if !right {
			put[table] = found{Value: Value{To: Target{Do: unknown}}}
			continue
		}
		for n, v := range have {
			if n.Family == f {
				nftOne(n, v, known, put)
			}
		}
	}
	return put
}

// nftKnown maps the nftables objects with fixed names to objects of this mode, and
// reports whether those that cannot be changed in place are as desired.
func nftKnown(f model.Family, have map[nft.Key]nft.Value) (known map[nft.Key]Key, right bool) {
	known, right = map[nft.Key]Key{}, true
	table := Key{Kind: KindTable, Family: f}
	nftObjects(table, nil, func(n nft.Key, want nft.Value) {
		known[n] = table
		v, ok := have[n]
		right = right && ok && v.Equal(want)
	})
	chain := func(k Key) {
		nftObjects(k, nil, func(n nft.Key, want nft.Value) {
			known[n] = k
			v, ok := have[n]
			right = right && (!ok || v.Body.Chain.Hook == want.Body.Chain.Hook)
		})
	}
	for _, name := range ownedChains() {
		chain(Key{Kind: KindChain, Family: f, Chain: name})
	}
	for name := range jumps {
		chain(Key{Kind: kindJump, Family: f, Chain: name})
		chain(Key{Kind: kindJump, Family: f, Chain: name, Late: true})
	}
	return known, right
}

// nftOne turns one nftables object into an object of this mode.
func nftOne(n nft.Key, v nft.Value, known map[nft.Key]Key, put map[Key]found) {
	k, ok := known[n]
	switch {
	case ok && k.Kind == KindTable:
		put[k] = found{}
	case ok:
		// A chain with a foreign rule has no digest.
		put[k] = found{Value: Value{Digest: cmp.Or(v.Body.Chain.Digest, math.MaxUint64)}}
	default:
		if k, to, port, ok := entryIn(n, v); ok {
			put[k] = entryFound(to, port, installed{})
			return
		}
		k = Key{Kind: kindUnexpected, Family: n.Family, Chain: n.Set.String(), Rest: n.String()}
		put[k] = found{installed: installed{foreign: n}}
	}
}
