package userspace

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// How the comments of entries end. What is before names the relay, or the port.
const (
	sayRefused = ": refused"
	sayDropped = ": dropped"
	sayAdmit   = ": allowed"
	sayClosed  = "other ports of a cluster IP"
)

// entryRule returns an entry as a rule. The relay's port is put in by who knows
// it.
func entryRule(k Key, to Target, port uint16) xtables.Rule {
	r := xtables.Rule{Src: xtables.Within(k.From), Proto: k.Proto, Ports: xtables.Port(k.At.Port())}
	if !k.At.Addr().IsUnspecified() {
		r.Dst = xtables.Address(k.At.Addr())
	}
	switch to.Do {
	case ToRelay:
		r.Comment, r.Target = to.Relay.String(), xtables.DNAT{To: shelterPort(k.Family, port)}
	case Refuse:
		r.Comment, r.Target = to.Relay.Port.String()+sayRefused, xtables.Jump{Chain: chainRefuse}
		if k.Chain == chainClosed {
			r.Comment = sayClosed
		}
	case Silence:
		r.Comment, r.Target = to.Relay.Port.String()+sayDropped, xtables.Jump{Chain: chainDrop}
	case Admit:
		r.Comment, r.Target = to.Relay.Port.String()+sayAdmit, xtables.Return
	}
	r.Comment = clean(r.Comment)
	return r
}

// entryOf is the reverse of entryRule. It is false for rules that it does not
// make; the port is that of the relay.
func entryOf(f model.Family, chain string, r xtables.Rule) (k Key, to Target, port uint16, ok bool) {
	any := netip.AddrPortFrom(f.Unspecified(), r.Ports.First)
	k = Key{Kind: KindEntry, Family: f, Chain: chain, Proto: r.Proto, At: any, From: r.Src.Prefix}
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
		to.Do, name = Refuse, ""
	case cut(sayRefused):
		to.Do = Refuse
	case cut(sayDropped):
		to.Do = Silence
	case cut(sayAdmit):
		to.Do = Admit
		if !r.Src.Prefix.IsValid() {
			k.From = netip.PrefixFrom(f.Unspecified(), 0)
		}
	default:
		dnat, _ := r.Target.(xtables.DNAT)
		port = dnat.To.Port()
	}
	to.Relay, ok = parseRelay(name, model.PortID{Proto: r.Proto, Family: f})
	// What was read must be all that there is.
	return k, to, port, ok && entryRule(k, to, port).Equal(r)
}

// parseRelay is the reverse of RelayID.String, for a known protocol and family.
func parseRelay(text string, of model.PortID) (id RelayID, ok bool) {
	if text == "" {
		return id, true
	}
	id.Port = of
	name, pool, more := strings.Cut(text, ", pool ")
	if more {
		n, err := strconv.ParseUint(pool, 10, 8)
		if err != nil || n < 2 {
			return id, false
		}
		id.Pool = uint8(n - 1)
	}
	service, port, _ := strings.Cut(name, ":")
	id.Port.Name = port
	id.Port.Service.Namespace, id.Port.Service.Name, ok = strings.Cut(service, "/")
	return id, ok
}

// text renders an entry for people.
func (k Key) text(to Target) string {
	where := "to " + k.At.Addr().String()
	if k.At.Addr().IsUnspecified() {
		where = "to this host"
	}
	if k.At.Port() != 0 {
		where = fmt.Sprintf("%s %s port %d", where, k.Proto, k.At.Port())
	}
	if k.From.IsValid() {
		where = fmt.Sprintf("from %s %s", k.From, where)
	}
	do := [...]string{ToRelay: "relay " + to.Relay.String(), Refuse: "refuse", Silence: "drop", Admit: "go on"}[to.Do]
	return fmt.Sprintf("%s %s: %s", k.Chain, where, do)
}

// longest is how many bytes a comment may have: 255 in iptables, 251 in nftables.
const longest = 250

// clean makes a text fit for a comment: not too long, and nothing that the tools
// would take for more than text.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '\'' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), longest)]
}
