package userspace

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
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
func entryRule(k Key, to Target, port uint16) Rule {
	r := Rule{Proto: k.Proto, Port: k.At.Port()}
	if k.From.Bits() > 0 {
		r.Src = k.From
	}
	if !k.At.Addr().IsUnspecified() {
		r.Dst = single(k.At.Addr())
	}
	switch to.Do {
	case ToRelay:
		r.Comment, r.To = to.Relay.String(), netip.AddrPortFrom(Shelter(k.Family), port)
	case Refuse:
		r.Comment, r.Jump = to.Relay.Port.String()+sayRefused, chainRefuse
		if k.Chain == chainClosed {
			r.Comment = sayClosed
		}
	case Silence:
		r.Comment, r.Jump = to.Relay.Port.String()+sayDropped, chainDrop
	case Admit:
		r.Comment, r.Jump = to.Relay.Port.String()+sayAdmit, returns
	}
	r.Comment = clean(r.Comment)
	return r
}

// entryOf is the reverse of entryRule. It is false for rules that it does not
// make; the port is that of the relay.
func entryOf(f model.Family, chain string, r Rule) (k Key, to Target, port uint16, ok bool) {
	any := netip.AddrPortFrom(f.Unspecified(), r.Port)
	k = Key{Kind: KindEntry, Family: f, Chain: chain, Proto: r.Proto, At: any, From: r.Src}
	if r.Dst.IsValid() {
		k.At = netip.AddrPortFrom(r.Dst.Addr(), r.Port)
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
		if !r.Src.IsValid() {
			k.From = netip.PrefixFrom(f.Unspecified(), 0)
		}
	default:
		port = r.To.Port()
	}
	to.Relay, ok = parseRelay(name, model.PortID{Proto: r.Proto, Family: f})
	// What was read must be all that there is.
	return k, to, port, ok && entryRule(k, to, port) == r
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
