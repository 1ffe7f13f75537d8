// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unique"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Reserved ports of the relay address: nothing listens on the first, and sockets on
// the second drop every packet. IANA reserves the second, too, and it is the lowest that can be
// bound without CAP_NET_BIND_SERVICE, which the proxy lacks as a service or in a pod.
const (
	rejectPort = 1
	dropPort   = 1024
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

// Kind is the kind of an object.
type Kind uint8

const (
	kindAddress    Kind = iota // the address of the relays
	kindDropPort               // the sockets on its drop port
	KindTable                  // the table with the chains
	KindChain                  // an owned chain with its fixed rules
	kindRelay                  // a listener and its endpoints
	kindEntry                  // a rule for one frontend
	kindJump                   // a jump from a built-in chain to an owned one
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
	Digest uint64        // nftables' hash of Rules, of which only that is read back; or 0
	Policy *relay.Policy // of relays; never changed
}

// UsesRelay reports whether an object is a rule that leads to the relay of a key. Such a relay is
// not deleted: connections would be refused until the rule leads elsewhere.
func UsesRelay(k Key, v Value, relay Key) bool {
	return k.Kind == kindEntry && relay.Kind == kindRelay && k.Family == relay.Family && v.To.Do == toRelay && v.To.Relay == relay.Relay
}

// RelayID names a relay: the port that it serves, and the policy by which its endpoints are
// chosen. So a rule leads to endpoints of its frontend's policy at any time, whichever
// other frontends come and go: relays change before the rules do. Where both policies have the
// same endpoints there are two relays. The zero value names none. It takes a word: a Service
// may have 30,000 entries, and each names its relay.
type RelayID struct{ name unique.Handle[relayName] }

type relayName struct {
	port   model.PortID
	policy model.TrafficPolicy
}

func relayOf(port model.PortID, policy model.TrafficPolicy) RelayID {
	return RelayID{unique.Make(relayName{port, policy})}
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
	return cmp.Or(a.port.Compare(b.port), cmp.Compare(a.policy, b.policy))
}

// Target is where an entry leads.
type Target struct {
	Do    Do
	Relay RelayID // for toRelay; otherwise it names only the port, if there is one
}

// Do is the kind of a Target.
type Do uint8

const (
	toRelay Do = iota
	Reject     // answer that nothing listens
	Drop       // do not answer
	Accept     // inside the source ranges
	unknown    // a rule that Tandem never writes
)

func (v Value) equal(o Value) bool {
	rules := v.Rules == o.Rules
	if v.Digest != 0 && o.Digest != 0 {
		rules = v.Digest == o.Digest
	}
	return rules && v.To == o.To && (v.Policy == o.Policy || v.Policy != nil && o.Policy != nil && v.Policy.Equal(o.Policy))
}

// localSuffix marks the relay of policy Local in the comments of its rules. Earlier versions
// numbered a port's pools in the order of its frontends and read this as the second pool, which
// is the local one unless the first frontend has policy Local.
const localSuffix = ", pool 2"

// comment names the relay in the comments of its rules.
func (id RelayID) comment() string { return id.named(localSuffix) }

// String names the relay in logs and errors.
func (id RelayID) String() string { return id.named(", local endpoints") }

// named returns the name of the port, with a suffix for policy Local.
func (id RelayID) named(local string) string {
	name := id.parts()
	if name.policy == model.Local {
		return name.port.String() + local
	}
	return name.port.String()
}

// String names the object in logs and errors.
func (k Key) String() string {
	switch k.Kind {
	case kindAddress:
		return "address " + relayAddr(k.Family).String()
	case kindDropPort:
		return k.Family.String() + " drop port"
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
	foreign nft.Key       // in nftables, of unexpected elements; other keys follow from the object's

	relay RelayID // the target and its port; zero for none
	port  uint16
}

// InTable reports whether an object is part of a table: those of a family and a Commit are one transaction.
func InTable(k Key) bool {
	return k.Kind != kindAddress && k.Kind != kindDropPort && k.Kind != kindRelay
}

// The chains. The names with CONTAINER and HOST are those of kube-proxy's userspace mode.
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
	chainReject        = "KUBE-PORTALS-REFUSE"
	chainDrop          = "KUBE-PORTALS-DROP"
)

// ends are the chains that reject or drop, and the ports that they use for it.
var ends = map[string]uint16{chainReject: rejectPort, chainDrop: dropPort}

// entryChains hold entries; the rules of fixedChains depend only on the host.
var (
	entryChains = []string{
		chainGuard, chainPod, chainContainer, chainHost, chainClosed, chainNodePod, chainNodeContainer, chainNodeHost,
	}
	fixedChains = []string{chainReject, chainDrop, chainLast, chainIn, chainOut}
)

// jumps are the built-in chains and the owned chain that each jumps to first.
var jumps = map[string]string{xtables.PreRouting: chainIn, xtables.Output: chainOut}

// ownedChains are all chains but the built-in ones.
func ownedChains() []string { return slices.Concat(entryChains, fixedChains) }

func isEntryChain(name string) bool { return slices.Contains(entryChains, name) }

// fixed returns the rules of a fixed chain.
func fixed(f model.Family, chain string, host *model.Host, mark uint32) (rules []xtables.Rule) {
	switch chain {
	case chainReject, chainDrop:
		for _, p := range [...]model.Proto{model.TCP, model.UDP, model.SCTP} {
			rules = append(rules, xtables.Rule{Proto: p, Target: xtables.DNAT{To: relayAddrPort(f, ends[chain])}})
		}
		return rules
	case chainLast:
		return unallocated(f, host, mark)
	case chainIn:
		shut := xtables.Rule{Dst: xtables.Address(relayAddr(f)), Comment: "direct access to a relay", Target: xtables.Jump{Chain: chainReject}}
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

// hookChain describes KUBE-PORTALS-IN or -OUT: how it detects pods, and the chains that it
// jumps to.
type hookChain struct {
	pods               []xtables.Rule // matches only
	pod, other         string
	nodePod, nodeOther string
}

func (w hookChain) rules(f model.Family, host *model.Host) []xtables.Rule {
	rules := []xtables.Rule{xtables.JumpTo(chainGuard)}
	for _, r := range w.pods {
		r.Target, r.Comment = xtables.Jump{Chain: w.pod}, "pods of this node"
		rules = append(rules, r)
	}
	rules = append(rules, xtables.JumpTo(w.other), xtables.JumpTo(chainClosed))
	if a := f.Loopback(); host.NodePorts.Contains(a) {
		rules = append(rules, w.nodePorts(netip.PrefixFrom(a, a.BitLen()))...)
	}
	rules = append(rules, xtables.Rule{Dst: xtables.Within(f.Loopbacks()), Target: xtables.Return})
	for _, p := range f.Prefixes(host.NodePorts.Prefixes) {
		rules = append(rules, w.nodePorts(p)...)
	}
	return rules
}

// nodePorts returns the jumps to the chains of node ports for local addresses of a prefix.
func (w hookChain) nodePorts(p netip.Prefix) (rules []xtables.Rule) {
	to, here := xtables.Within(p), xtables.DstLocal{}
	for _, r := range w.pods {
		r.Dst, r.Target = to, xtables.Jump{Chain: w.nodePod}
		rules = append(rules, r.With(here))
	}
	return append(rules, xtables.Rule{Dst: to, Matches: []xtables.Match{here}, Target: xtables.Jump{Chain: w.nodeOther}})
}

// sayUnallocated is the comment of rules that drop packets to unallocated cluster IPs.
const sayUnallocated = "unallocated cluster IP"

// unallocated returns the rules that drop packets to unallocated cluster IPs, except to
// addresses of this host, and those of relays: endpoints in such a range are reached, as in the
// kernel modes. An address may belong to a Service of another proxy (label
// service-proxy-name), whose rules come before these.
func unallocated(f model.Family, host *model.Host, mark uint32) (rules []xtables.Rule) {
	here := []xtables.Match{xtables.DstLocal{}}
	for i, p := range f.Prefixes(host.ServiceCIDRs) {
		if i == 0 {
			rules = append(rules, skipRelayTraffic(mark))
		}
		to := xtables.Within(p)
		rules = append(rules, xtables.Rule{Dst: to, Matches: here, Target: xtables.Return},
			xtables.Rule{Dst: to, Comment: sayUnallocated, Target: xtables.Jump{Chain: chainDrop}})
	}
	return rules
}

// jumpRule is the rule of a kindJump.
func jumpRule(k Key) xtables.Rule {
	if k.Late {
		return xtables.Rule{Comment: "no Kubernetes Service", Target: xtables.Jump{Chain: chainLast}}
	}
	return xtables.Rule{Comment: "Kubernetes Services, by relays of tandem", Target: xtables.Jump{Chain: jumps[k.Chain]}}
}

// batch is one transaction of the nat table of one family.
type batch struct{ xtables.Script }

// edit adds an edit. The nat table itself is neither created nor deleted.
func (b *batch) edit(e edit) {
	k := e.key
	switch {
	case k.Kind == KindTable:
	case k.Kind == KindChain && e.verb == ledger.Delete:
		b.Drop(k.Chain)
	case k.Kind == KindChain:
		b.Rewrite(k.Chain, xtables.List(e.rules...))
	default:
		if e.verb != ledger.Create {
			b.Delete(k.Chain, e.have.printed)
		}
		if e.verb != ledger.Delete {
			b.put(k, e.rules[0])
		}
	}
}

// withoutImplied omits deletions of rules in a chain that is deleted: for each of
// them iptables-restore would search the whole chain.
func withoutImplied(edits []edit) (rest []edit) {
	gone := map[string]bool{}
	for _, e := range edits {
		if e.key.Kind == KindChain && e.verb == ledger.Delete {
			gone[e.key.Chain] = true
		}
	}
	for _, e := range edits {
		if e.verb != ledger.Delete || e.key.Kind == KindChain || !gone[e.key.Chain] {
			rest = append(rest, e)
		}
	}
	return rest
}

// put adds an entry or a jump. Allowed source ranges come before the drop; jumps come
// before all foreign rules, or after them if Late.
func (b *batch) put(k Key, rule xtables.Rule) {
	if k.Kind == kindJump && !k.Late || k.From.IsValid() {
		b.Insert(k.Chain, 1, xtables.List(rule))
		return
	}
	b.Append(k.Chain, xtables.List(rule))
}

// natObjects turns the output of iptables-save for the nat table of a family into
// objects.
func natObjects(f model.Family, saved string, put map[Key]found) error {
	tables, err := xtables.ParseSave(saved)
	if err != nil {
		return err
	}
	for _, t := range tables {
		for _, c := range t.Chains {
			if t.Name == xtables.NAT.String() {
				natChain(f, c, put)
			}
		}
	}
	return nil
}

func natChain(f model.Family, c xtables.SavedChain, put map[Key]found) {
	if jumps[c.Name] != "" {
		for _, l := range c.Rules {
			natJump(f, c.Name, l, put)
		}
		return
	}
	entries := isEntryChain(c.Name)
	if !entries && !slices.Contains(fixedChains, c.Name) {
		return
	}
	put[Key{Kind: KindTable, Family: f}] = found{}
	chain := found{}
	if !entries {
		chain.Rules = xtables.Canonical(c.Rules...)
	}
	put[Key{Kind: KindChain, Family: f, Chain: c.Name}] = chain
	for _, l := range c.Rules {
		if entries {
			l = xtables.Line(strings.Clone(string(l))) // relay names share its memory, and would keep the whole listing
			natEntry(f, c.Name, l, put)
		}
	}
}

func natEntry(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	k, to, port, ok := entryOf(f, chain, l.Rule())
	if _, twice := put[k]; !ok || twice {
		unexpected(f, chain, l, put)
		return
	}
	put[k] = entryFound(to, port, installed{printed: xtables.Printed(l)})
}

// entryFound is an entry as it was read, with its relay's port.
func entryFound(to Target, port uint16, have installed) found {
	if to.Do == toRelay {
		have.relay, have.port = to.Relay, port
	}
	return found{Value{To: to}, have}
}

// natJump reads a rule of a built-in chain if it jumps to an owned chain.
func natJump(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	rule := l.Rule()
	k := Key{Kind: kindJump, Family: f, Chain: chain}
	switch rule.Chain() {
	case chainIn, chainOut:
	case chainLast:
		k.Late = true
	default:
		return
	}
	if _, twice := put[k]; twice || !rule.Equal(jumpRule(k)) {
		unexpected(f, chain, l, put)
		return
	}
	put[k] = found{Value{Rules: xtables.List(rule)}, installed{printed: xtables.Printed(l)}}
}

func unexpected(f model.Family, chain string, l xtables.Line, put map[Key]found) {
	k := Key{Kind: kindUnexpected, Family: f, Chain: chain, Rest: strings.Clone(string(l))}
	for n := 2; ; n++ { // equal rules
		if _, taken := put[k]; !taken {
			break
		}
		k.Rest = fmt.Sprintf("%s (%d)", l, n)
	}
	put[k] = found{installed: installed{printed: xtables.Printed(l)}}
}

// Of entries that lead to no relay: the targets, and the ends of comments, after the Service port.
var (
	targets  = [...]xtables.Target{Reject: xtables.Jump{Chain: chainReject}, Drop: xtables.Jump{Chain: chainDrop}, Accept: xtables.Return}
	suffixes = [...]string{Reject: ": refused", Drop: ": dropped", Accept: ": allowed"}
)

const sayClosed = "other ports of a cluster IP"

// entryRule returns an entry as a rule; port is that of the relay.
func entryRule(k Key, to Target, port uint16) xtables.Rule {
	r := xtables.Rule{Src: xtables.Within(k.From), Proto: k.Proto, Ports: xtables.Port(k.At.Port())}
	if !k.At.Addr().IsUnspecified() {
		r.Dst = xtables.Address(k.At.Addr())
	}
	switch {
	case to.Do == toRelay:
		r.Comment, r.Target = to.Relay.comment(), xtables.DNAT{To: relayAddrPort(k.Family, port)}
	case k.Chain == chainClosed:
		r.Comment, r.Target = sayClosed, targets[Reject]
	case to.Do < unknown:
		r.Comment, r.Target = to.Relay.Port().String()+suffixes[to.Do], targets[to.Do]
	}
	r.Comment = sanitize(r.Comment)
	return r
}

// entryOf is the reverse of entryRule; ok is false for rules that entryRule never returns.
func entryOf(f model.Family, chain string, r xtables.Rule) (k Key, to Target, port uint16, ok bool) {
	any := netip.AddrPortFrom(f.Unspecified(), r.Ports.First)
	k = Key{Kind: kindEntry, Family: f, Chain: chain, Proto: r.Proto, At: any, From: r.Src.Prefix}
	if r.Dst.Prefix.IsValid() {
		k.At = netip.AddrPortFrom(r.Dst.Prefix.Addr(), r.Ports.First)
	}
	if to, ok = targetOf(k, r.Comment); to.Do == Accept && !k.From.IsValid() {
		k.From = netip.PrefixFrom(f.Unspecified(), 0)
	}
	if dnat, is := r.Target.(xtables.DNAT); is {
		port = dnat.To.Port()
	}
	// The whole rule must be as entryRule writes it.
	return k, to, port, ok && entryRule(k, to, port).Equal(r)
}

// targetOf is the target of an entry by its comment.
func targetOf(k Key, comment string) (to Target, ok bool) {
	if comment == sayClosed {
		to.Do, comment = Reject, ""
	}
	for do, suffix := range suffixes {
		if rest, is := strings.CutSuffix(comment, suffix); is && suffix != "" {
			to.Do, comment = Do(do), rest
			break
		}
	}
	to.Relay, ok = parseRelay(comment, model.PortID{Proto: k.Proto, Family: k.Family})
	return to, ok
}

// parseRelay is the reverse of RelayID.comment, for a known protocol and family.
func parseRelay(text string, of model.PortID) (id RelayID, ok bool) {
	if text == "" {
		return id, true
	}
	policy := model.Cluster
	text, local := strings.CutSuffix(text, localSuffix)
	if local {
		policy = model.Local
	}
	service, port, _ := strings.Cut(text, ":")
	of.Name = port
	of.Service.Namespace, of.Service.Name, ok = strings.Cut(service, "/")
	return relayOf(of, policy), ok
}

// maxComment is the length of the longest comment in bytes: iptables has 255, linux/nft 251.
const maxComment = 250

// sanitize shortens a text to maxComment and replaces characters that iptables-restore or
// nft would interpret.
func sanitize(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '\'' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), maxComment)]
}
