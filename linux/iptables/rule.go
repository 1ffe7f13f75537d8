package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tandem-proxy/tandem/core/model"
)

// Rule is one rule, in those terms of iptables that we use. The zero value of
// a field is no such match. Rules are comparable.
type Rule struct {
	Src, Dst    addrMatch
	In          nameMatch // interface; a trailing + stands for any rest
	Proto       model.Proto
	Ports       portRange // destination; needs Proto
	Comment     string
	SrcLocal    bool // an address of the host itself
	DstLocal    bool
	DstRemote   bool      // no address of the host itself
	State       nameMatch // of connection tracking, such as NEW
	OrigDst     addrMatch // destination before DNAT
	Mark        markMatch
	Remember    recent
	Chance      uint32 // in units of 1/2^31
	Target      string // a chain or ACCEPT, DROP, ...; empty to do nothing
	Goto        bool   // do not come back here, but to where this chain was called
	To          netip.AddrPort
	XMark       markSet
	RandomFully bool // --random-fully
}

type addrMatch struct {
	Prefix netip.Prefix
	Not    bool
}

type nameMatch struct {
	Name string
	Not  bool
}

type portRange struct{ First, Last uint16 }

type markMatch struct {
	Value, Mask uint32
	Not         bool
}

// markSet clears the bits of Mask and flips those of Value (--set-xmark).
type markSet struct {
	Value, Mask uint32
	Given       bool
}

// recent is the match that knows clients again: Set notes the sender, otherwise
// it asks whether it was noted within Seconds.
type recent struct {
	Name    string
	Set     bool
	Seconds uint32
}

// chance is the probability of one out of n, as the kernel keeps it.
func chance(n int) uint32 { return uint32((uint64(1)<<31 + uint64(n)/2) / uint64(n)) }

// exactly is the match of one address.
func exactly(a netip.Addr) addrMatch { return addrMatch{Prefix: netip.PrefixFrom(a, a.BitLen())} }

func port(n uint16) portRange { return portRange{n, n} }

// matches is what a rule asks for, but for its comment.
func (r Rule) matches() string { return string(r.appendMatches(make([]byte, 0, ruleSize), "")) }

// text returns the rule as one line.
func (r Rule) text() Value { return Value(r.append(make([]byte, 0, ruleSize))) }

// ruleSize is how long a rule is, roughly.
const ruleSize = 160

// append writes the rule in the order in which iptables-save prints it, so that
// people can compare.
func (r Rule) append(b []byte) []byte {
	start := len(b)
	b = r.appendMatches(b, r.Comment)
	if r.Target != "" {
		b = append(b, map[bool]string{false: " -j ", true: " -g "}[r.Goto]...)
		b = append(b, r.Target...)
	}
	if r.To.IsValid() {
		b = append(b, " --to-destination "...)
		b = r.To.AppendTo(b)
	}
	if r.XMark.Given {
		b = fmt.Appendf(b, " --set-xmark %#x/%#x", r.XMark.Value, r.XMark.Mask)
	}
	if r.RandomFully {
		b = append(b, " --random-fully"...)
	}
	if len(b) > start { // without the first space
		b = slices.Delete(b, start, start+1)
	}
	return append(b, '\n')
}

func (r Rule) appendMatches(b []byte, comment string) []byte {
	word := func(not bool, option, value string) {
		if not {
			b = append(b, " !"...)
		}
		b = append(append(append(append(b, ' '), option...), ' '), value...)
	}
	if r.Src.Prefix.IsValid() {
		b = r.Src.append(b, "-s")
	}
	if r.Dst.Prefix.IsValid() {
		b = r.Dst.append(b, "-d")
	}
	if r.In.Name != "" {
		word(r.In.Not, "-i", r.In.Name)
	}
	if r.Proto != 0 {
		word(false, "-p", r.Proto.String())
	}
	if comment != "" {
		b = appendQuoted(append(b, " -m comment --comment "...), comment)
	}
	if r.SrcLocal {
		word(false, "-m addrtype", "--src-type LOCAL")
	}
	if r.DstLocal {
		word(false, "-m addrtype", "--dst-type LOCAL")
	}
	if r.DstRemote {
		word(false, "-m addrtype !", "--dst-type LOCAL")
	}
	if r.State.Name != "" {
		word(false, "-m", "conntrack")
		word(r.State.Not, "--ctstate", r.State.Name)
	}
	if r.OrigDst.Prefix.IsValid() {
		b = r.OrigDst.append(append(b, " -m conntrack"...), "--ctorigdst")
	}
	if r.Mark.Mask != 0 {
		word(false, "-m", "mark")
		word(r.Mark.Not, "--mark", fmt.Sprintf("%#x/%#x", r.Mark.Value, r.Mark.Mask))
	}
	b = r.Remember.append(b)
	if r.Chance != 0 {
		word(false, "-m statistic --mode random --probability", strconv.FormatFloat(float64(r.Chance)/(1<<31), 'f', 11, 64))
	}
	if r.Ports != (portRange{}) {
		word(false, "-m "+r.Proto.String()+" --dport", r.Ports.String())
	}
	return b
}

func (m addrMatch) append(b []byte, option string) []byte {
	if m.Not {
		b = append(b, " !"...)
	}
	return m.Prefix.AppendTo(append(append(append(b, ' '), option...), ' '))
}

func (p portRange) String() string {
	s := strconv.Itoa(int(p.First))
	if p.Last != p.First {
		s += ":" + strconv.Itoa(int(p.Last))
	}
	return s
}

func (m recent) append(b []byte) []byte {
	switch {
	case m.Name == "":
		return b
	case m.Set:
		return fmt.Appendf(b, " -m recent --set --name %s --rsource", m.Name)
	}
	return fmt.Appendf(b, " -m recent --rcheck --seconds %d --reap --name %s --rsource", m.Seconds, m.Name)
}

// maxComment is how many bytes a comment may have.
const maxComment = 255

// appendQuoted writes a comment that stays on its line and between its quotes,
// for any text: what is not printable ASCII becomes a question mark.
func appendQuoted(b []byte, comment string) []byte {
	b = append(b, '"')
	for i := range min(len(comment), maxComment) {
		switch c := comment[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '?')
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
