package userspace

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// Rule is one rule of the nat table: matches, of which the zero ones match
// everything, and what to do.
type Rule struct {
	Src, Dst netip.Prefix
	In       string // an interface, or with a final + all whose names start so
	Proto    model.Proto
	Local    bool   // to an address of this host
	Mark     uint32 // a bit that the packet's mark has
	Comment  string
	Port     uint16 // the destination port

	Jump string         // a chain, or RETURN
	To   netip.AddrPort // or where to send the connection
}

// returns is the target that goes back to the calling chain.
const returns = "RETURN"

// String returns the rule as iptables-save prints it, and as iptables-restore
// reads it after "-A CHAIN".
func (r Rule) String() string {
	var b strings.Builder
	word := func(format string, args ...any) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, format, args...)
	}
	if r.Src.Bits() > 0 {
		word("-s %s", r.Src)
	}
	if r.Dst.Bits() > 0 {
		word("-d %s", r.Dst)
	}
	if r.In != "" {
		word("-i %s", r.In)
	}
	if r.Proto != 0 {
		word("-p %s", r.Proto)
	}
	if r.Local {
		word("-m addrtype --dst-type LOCAL")
	}
	if r.Mark != 0 {
		word("-m mark --mark %#x/%#x", r.Mark, r.Mark)
	}
	if r.Comment != "" {
		word("-m comment --comment \"%s\"", r.Comment)
	}
	if r.Port != 0 {
		word("-m %s --dport %d", r.Proto, r.Port)
	}
	if r.Jump != "" {
		word("-j %s", r.Jump)
	}
	if r.To.IsValid() {
		word("-j DNAT --to-destination %s", r.To)
	}
	return b.String()
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
