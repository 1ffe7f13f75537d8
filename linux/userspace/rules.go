// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

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
	if !entries && !isFixedChain(c.Name) {
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

// natJump reads a rule of a built-in chain: those that jump to our chains; others are
// skipped.
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
		r.Comment, r.Target = to.Relay.comment(), xtables.DNAT{To: relayAddrPort(k.Family, port)}
	case Reject:
		r.Comment, r.Target = to.Relay.Port().String()+sayRefused, xtables.Jump{Chain: chainReject}
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
