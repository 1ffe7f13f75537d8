// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unique"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// The chains. Those of kube-proxy's userspace mode have its names; new are those for
// pods, source ranges and other ports of cluster IPs.
const (
	chainIn            = "KUBE-PORTALS-IN"
	chainOut           = "KUBE-PORTALS-OUT"
	chainLast          = "KUBE-PORTALS-UNALLOCATED"
	chainGuard         = "KUBE-PORTALS-GUARD"
	chainPod           = "KUBE-PORTALS-POD"
	chainContainer     = "KUBE-PORTALS-CONTAINER"
	chainHost          = "KUBE-PORTALS-HOST"
	chainClosed        = "KUBE-PORTALS-CLOSED"
	chainNodePod       = "KUBE-NODEPORT-POD"
	chainNodeContainer = "KUBE-NODEPORT-CONTAINER"
	chainNodeHost      = "KUBE-NODEPORT-HOST"
	chainRefuse        = "KUBE-PORTALS-REFUSE"
	chainDrop          = "KUBE-PORTALS-DROP"
)

// Reserved ports of the relay address: nothing listens on the first, and sockets on
// the second drop every packet.
const (
	rejectPort = 1
	dropPort   = 2
)

// relayAddr returns the address on lo that relays listen on. It is local to the
// host: link-local in IPv4, of a unique local prefix in IPv6.
func relayAddr(f model.Family) netip.Addr {
	if f == model.IPv4 {
		return netip.AddrFrom4([4]byte{169, 254, 84, 1})
	}
	return netip.MustParseAddr("fd74:616e:6465:6d::1")
}

func relayAddrPort(f model.Family, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(relayAddr(f), port)
}

// ends are the chains that reject or drop, and the ports that they use for it.
var ends = map[string]uint16{chainRefuse: rejectPort, chainDrop: dropPort}

// entryChains hold entries; the rules of fixedChains depend only on the host.
var (
	entryChains = []string{
		chainGuard, chainPod, chainContainer, chainHost, chainClosed, chainNodePod, chainNodeContainer, chainNodeHost,
	}
	fixedChains = []string{chainRefuse, chainDrop, chainLast, chainIn, chainOut}
)

// jumps are the built-in chains and our chains that they jump to.
var jumps = map[string]string{xtables.PreRouting: chainIn, xtables.Output: chainOut}

// ourChains are all chains but the built-in ones.
func ourChains() []string { return slices.Concat(entryChains, fixedChains) }

func isEntryChain(name string) bool { return slices.Contains(entryChains, name) }

func isFixedChain(name string) bool { return slices.Contains(fixedChains, name) }

// fixed returns the rules of a fixed chain.
func fixed(f model.Family, chain string, host *model.Host, mark uint32) []xtables.Rule {
	switch chain {
	case chainRefuse, chainDrop:
		return dnatAll(f, ends[chain])
	case chainLast:
		return unallocated(f, host)
	case chainIn:
		shut := xtables.Rule{Dst: xtables.Address(relayAddr(f)), Comment: "relays are reached through Services only", Target: xtables.Jump{Chain: chainRefuse}}
		pods, _ := xtables.FromPods(f, host.Pods)
		in := hookChain{pods: pods, pod: chainPod, other: chainContainer, nodePod: chainNodePod, nodeOther: chainNodeContainer}
		return append([]xtables.Rule{shut}, in.rules(f, host)...)
	case chainOut:
		_, pods := xtables.FromPods(f, host.Pods)
		out := hookChain{pods: pods, pod: chainPod, other: chainHost, nodePod: chainNodePod, nodeOther: chainNodeHost}
		return append([]xtables.Rule{skipRelayTraffic(mark)}, out.rules(f, host)...)
	}
	return nil
}

// skipRelayTraffic exempts packets from relays from our rules. If an endpoint is a
// Service's address, its connections would return to a relay, in an endless loop.
func skipRelayTraffic(mark uint32) xtables.Rule {
	marked := xtables.HasMark{Value: mark, Mask: mark}
	return xtables.Rule{Comment: "relays, to endpoints", Matches: []xtables.Match{marked}, Target: xtables.Return}
}

// dnatAll redirects connections of all protocols to a port of the relay address.
func dnatAll(f model.Family, port uint16) (rules []xtables.Rule) {
	for _, p := range [...]model.Proto{model.TCP, model.UDP, model.SCTP} {
		rules = append(rules, xtables.Rule{Proto: p, Target: xtables.DNAT{To: relayAddrPort(f, port)}})
	}
	return rules
}

// hookChain describes one of the two chains at hooks: how it detects pods, and the
// chains that it jumps to.
type hookChain struct {
	pods               []xtables.Rule // matches only
	pod, other         string
	nodePod, nodeOther string
}

func (w hookChain) rules(f model.Family, host *model.Host) []xtables.Rule {
	here := []xtables.Match{xtables.DstLocal{}}
	rules := []xtables.Rule{xtables.JumpTo(chainGuard)}
	for _, r := range w.pods {
		r.Target, r.Comment = xtables.Jump{Chain: w.pod}, "pods of this node"
		rules = append(rules, r)
	}
	rules = append(rules, xtables.JumpTo(w.other), xtables.JumpTo(chainClosed))
	if !host.NodePorts.Loopback {
		rules = append(rules, xtables.Rule{Dst: xtables.Within(xtables.Loopback(f)), Target: xtables.Return})
	}
	for _, p := range f.Prefixes(host.NodePorts.Prefixes) {
		for _, r := range w.pods {
			r.Dst, r.Target = xtables.Within(p), xtables.Jump{Chain: w.nodePod}
			rules = append(rules, r.With(xtables.DstLocal{}))
		}
		rules = append(rules, xtables.Rule{Dst: xtables.Within(p), Matches: here, Target: xtables.Jump{Chain: w.nodeOther}})
	}
	return rules
}

// unallocated returns the rules that drop packets to unallocated cluster IPs, except
// to addresses of this host. An address may belong to a Service of another proxy
// (label service-proxy-name), whose rules come before these.
func unallocated(f model.Family, host *model.Host) (rules []xtables.Rule) {
	here := []xtables.Match{xtables.DstLocal{}}
	for _, p := range f.Prefixes(host.ServiceCIDRs) {
		to := xtables.Within(p)
		rules = append(rules, xtables.Rule{Dst: to, Matches: here, Target: xtables.Return},
			xtables.Rule{Dst: to, Comment: "for cluster IPs, and none of them", Target: xtables.Jump{Chain: chainDrop}})
	}
	return rules
}

// Kind is the kind of an object.
type Kind uint8

// The kinds of object.
const (
	kindAddress    Kind = iota // the address of the relays
	kindDropPort               // the sockets on its drop port
	KindTable                  // the table with the chains
	KindChain                  // a chain of ours with its fixed rules
	kindRelay                  // a listener and its endpoints
	kindEntry                  // a rule for one frontend
	kindJump                   // a jump from a built-in chain to ours
	kindUnexpected             // a rule in one of our chains that Tandem did not write
)

// Key names an object.
type Key struct {
	Kind   Kind
	Family model.Family
	Proto  model.Proto    // of entries; 0 for all
	Late   bool           // of jumps: after all foreign rules
	Chain  string         // of chains, entries, jumps and unexpected rules
	At     netip.AddrPort // of entries: the frontend; port 0 for all
	From   netip.Prefix   // of entries: the only clients; the zero value for all
	Relay  RelayID        // of relays
	Rest   string         // of unexpected rules: the text, and its number among equals
}

// Value is the content of an object.
type Value struct {
	To     Target        // of entries
	Rules  xtables.Rules // of chains and jumps
	Digest uint64        // hash of the same in nftables, where only that is read back; or 0
	Policy *relay.Policy // of relays; never changed
}

// RelayID names a relay: one pool of a port, counted from 0 in the order of
// Port.Pools. The zero value names none. It takes a word: a Service may have 30,000
// entries, and each names its relay.
type RelayID struct{ name unique.Handle[relayName] }

type relayName struct {
	port model.PortID
	pool uint8
}

func relayOf(port model.PortID, pool uint8) RelayID {
	return RelayID{unique.Make(relayName{port, pool})}
}

func (id RelayID) parts() (name relayName) {
	if id != (RelayID{}) {
		name = id.name.Value()
	}
	return name
}

// Port is the port that the relay serves.
func (id RelayID) Port() model.PortID { return id.parts().port }

func (id RelayID) compare(o RelayID) int {
	if id == o {
		return 0
	}
	a, b := id.parts(), o.parts()
	return cmp.Or(a.port.Compare(b.port), cmp.Compare(a.pool, b.pool))
}

// Target is where an entry leads.
type Target struct {
	Do    Do
	Relay RelayID // for toRelay; otherwise it names only the port, if there is one
}

// Do is the kind of a Target.
type Do uint8

// The kinds of target.
const (
	toRelay Do = iota
	Reject     // answer that nothing listens
	Drop       // do not answer
	Accept     // inside the source ranges
	unknown    // a rule that we never write
)

func (v Value) equal(o Value) bool {
	return v.To == o.To && v.sameRules(o) &&
		(v.Policy == o.Policy || v.Policy != nil && o.Policy != nil && v.Policy.Equal(o.Policy))
}

func (v Value) sameRules(o Value) bool {
	if v.Digest != 0 && o.Digest != 0 {
		return v.Digest == o.Digest
	}
	return v.Rules == o.Rules
}

// String names the relay for people, and for the comments of its rules.
func (id RelayID) String() string {
	name := id.parts()
	if name.pool > 0 {
		return fmt.Sprintf("%s, pool %d", name.port, name.pool+1)
	}
	return name.port.String()
}

// String names the object for people, for instance in errors.
func (k Key) String() string {
	switch k.Kind {
	case kindAddress:
		return "address " + relayAddr(k.Family).String()
	case kindDropPort:
		return k.Family.String() + " sink"
	case KindTable:
		return k.Family.String() + " table"
	case KindChain:
		return fmt.Sprintf("%s chain %s", k.Family, k.Chain)
	case kindRelay:
		return fmt.Sprintf("relay %s %s %s", k.Relay, k.Relay.Port().Proto, k.Relay.Port().Family)
	case kindEntry:
		if k.From.IsValid() {
			return fmt.Sprintf("%s entry %s %s from %s", k.Chain, k.Proto, k.At, k.From)
		}
		return fmt.Sprintf("%s entry %s %s", k.Chain, k.Proto, k.At)
	case kindJump:
		return fmt.Sprintf("%s jump in %s", k.Family, k.Chain)
	}
	return fmt.Sprintf("unexpected rule in %s: %s", k.Chain, k.Rest)
}

// jumpRule is the rule of a kindJump.
func jumpRule(k Key) xtables.Rule {
	if k.Late {
		return xtables.Rule{Comment: "no Kubernetes Service", Target: xtables.Jump{Chain: chainLast}}
	}
	return xtables.Rule{Comment: "Kubernetes Services, by relays of tandem", Target: xtables.Jump{Chain: jumps[k.Chain]}}
}

// sorted returns the keys of some kinds in a fixed order.
func sorted(objects map[Key]Value, kinds ...Kind) []Key {
	var keys []Key
	for k := range maps.Keys(objects) {
		if slices.Contains(kinds, k.Kind) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Chain, b.Chain),
		a.At.Compare(b.At), cmp.Compare(a.Proto, b.Proto), a.From.Addr().Compare(b.From.Addr()), cmp.Compare(a.From.Bits(), b.From.Bits()),
		a.Relay.compare(b.Relay), behind(a)-behind(b), cmp.Compare(a.Rest, b.Rest),
	)
}

func behind(k Key) int {
	if k.Late {
		return 1
	}
	return 0
}

// The suffixes of entries' comments. The part before names the relay, or the port.
const (
	sayRefused = ": refused"
	sayDropped = ": dropped"
	sayAdmit   = ": allowed"
	sayClosed  = "other ports of a cluster IP"
)

// entryRule returns an entry as a rule; port is that of the relay.
func entryRule(k Key, to Target, port uint16) xtables.Rule {
	r := xtables.Rule{Src: xtables.Within(k.From), Proto: k.Proto, Ports: xtables.Port(k.At.Port())}
	if !k.At.Addr().IsUnspecified() {
		r.Dst = xtables.Address(k.At.Addr())
	}
	switch to.Do {
	case toRelay:
		r.Comment, r.Target = to.Relay.String(), xtables.DNAT{To: relayAddrPort(k.Family, port)}
	case Reject:
		r.Comment, r.Target = to.Relay.Port().String()+sayRefused, xtables.Jump{Chain: chainRefuse}
		if k.Chain == chainClosed {
			r.Comment = sayClosed
		}
	case Drop:
		r.Comment, r.Target = to.Relay.Port().String()+sayDropped, xtables.Jump{Chain: chainDrop}
	case Accept:
		r.Comment, r.Target = to.Relay.Port().String()+sayAdmit, xtables.Return
	}
	r.Comment = sanitize(r.Comment)
	return r
}

// entryOf is the reverse of entryRule. It is false for rules that it does not
// make; the port is that of the relay.
func entryOf(f model.Family, chain string, r xtables.Rule) (k Key, to Target, port uint16, ok bool) {
	any := netip.AddrPortFrom(f.Unspecified(), r.Ports.First)
	k = Key{Kind: kindEntry, Family: f, Chain: chain, Proto: r.Proto, At: any, From: r.Src.Prefix}
	if r.Dst.Prefix.IsValid() {
		k.At = netip.AddrPortFrom(r.Dst.Prefix.Addr(), r.Ports.First)
	}
	name := r.Comment
	cut := func(end string) bool {
		rest, ok := strings.CutSuffix(name, end)
		if ok {
			name = rest
		}
		return ok
	}
	switch {
	case name == sayClosed:
		to.Do, name = Reject, ""
	case cut(sayRefused):
		to.Do = Reject
	case cut(sayDropped):
		to.Do = Drop
	case cut(sayAdmit):
		to.Do = Accept
		if !r.Src.Prefix.IsValid() {
			k.From = netip.PrefixFrom(f.Unspecified(), 0)
		}
	default:
		dnat, _ := r.Target.(xtables.DNAT)
		port = dnat.To.Port()
	}
	to.Relay, ok = parseRelay(name, model.PortID{Proto: r.Proto, Family: f})
	// The whole rule must be as entryRule writes it.
	return k, to, port, ok && entryRule(k, to, port).Equal(r)
}

// parseRelay is the reverse of RelayID.String, for a known protocol and family.
func parseRelay(text string, of model.PortID) (id RelayID, ok bool) {
	if text == "" {
		return id, true
	}
	text, pool, more := strings.Cut(text, ", pool ")
	var before uint64
	if more {
		n, err := strconv.ParseUint(pool, 10, 8)
		if err != nil || n < 2 {
			return id, false
		}
		before = n - 1
	}
	service, port, _ := strings.Cut(text, ":")
	of.Name = port
	of.Service.Namespace, of.Service.Name, ok = strings.Cut(service, "/")
	return relayOf(of, uint8(before)), ok
}

// maxComment is how many bytes a comment may have: 255 in iptables, 251 in nftables.
const maxComment = 250

// sanitize shortens a text for a comment and replaces characters with a meaning to
// the tools.
func sanitize(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '\'' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), maxComment)]
}

// edit is one change to an object of a table.
type edit struct {
	verb  ledger.Verb
	key   Key
	rules []xtables.Rule // as wanted
	have  installed      // as installed
}

// found is an object as it was read.
type found struct {
	Value
	installed
}

// installed is a rule as it is in its table.
type installed struct {
	printed xtables.Rules // in iptables
	foreign nft.Key       // in nftables, of unexpected elements; other keys follow from ours

	relay RelayID // the target and its port; zero for none
	port  uint16
}

// inTable reports whether an object is part of a table.
func inTable(k Key) bool {
	return k.Kind != kindAddress && k.Kind != kindDropPort && k.Kind != kindRelay
}
