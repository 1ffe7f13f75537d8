// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// The texts are those that nft 1.0.6 itself lists, as far as it can load them
// again.

// Text spells the rule.
func (r Rule) Text(f model.Family) string {
	parts := make([]string, 0, len(r.Statements)+1)
	for _, s := range r.Statements {
		parts = append(parts, s.text(f))
	}
	if r.Comment != "" {
		parts = append(parts, `comment "`+CommentText(r.Comment)+`"`)
	}
	return strings.Join(parts, " ")
}

func (s SourceIn) text(f model.Family) string {
	return FamilyName(f) + " saddr " + prefixText(s.Prefix)
}

func (s DestinationIn) text(f model.Family) string {
	if s.Not {
		return FamilyName(f) + " daddr != " + prefixText(s.Prefix)
	}
	return FamilyName(f) + " daddr " + prefixText(s.Prefix)
}

func (s FibLocal) text(model.Family) string {
	if s.Not {
		return "fib daddr type != local"
	}
	return "fib daddr type local"
}

func (s IifName) text(model.Family) string {
	name := printable(s.Name)
	if s.Prefix {
		name += "*"
	}
	return `iifname "` + name + `"`
}

func (s L4ProtoIs) text(model.Family) string { return "meta l4proto " + protoText(s.Proto) }

func (s MarkHas) text(model.Family) string {
	op := "!="
	if s.Not {
		op = "=="
	}
	return fmt.Sprintf("meta mark & 0x%08x %s 0x00000000", s.Bit, op)
}

func (s CtState) text(model.Family) string {
	return "ct state " + map[CtStates]string{CtInvalid: "invalid", CtKnown: "established,related", CtNew: "new"}[s.States]
}

func (s CtDNAT) text(model.Family) string {
	if s.Not {
		return "ct status ! dnat"
	}
	return "ct status dnat"
}

func (NotSYN) text(model.Family) string { return "tcp flags ! syn" }

func (s Lookup) text(f model.Family) string {
	not := ""
	if s.Not {
		not = "!= "
	}
	return keyText(f, s.Set.loaded(f), "") + " " + not + "@" + s.Set.Name
}

func (s SetMark) text(model.Family) string {
	return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Bit)
}

func (s ClearMark) text(model.Family) string {
	return fmt.Sprintf("meta mark set meta mark & 0x%08x", ^s.Bit)
}

func (s SetAddr) text(f model.Family) string {
	return keyText(f, []Field{s.Field}, "") + " set " + s.Number.lookupText(f, s.Map)
}

func (RestoreSource) text(f model.Family) string {
	return keyText(f, []Field{Saddr}, "") + " set " + keyText(f, []Field{CtSaddr}, "")
}

func (s Update) text(f model.Family) string {
	return fmt.Sprintf("update @%s { %s timeout %s%s }", s.Set, keyText(f, s.Set.loaded(f), ""), timeText(s.Timeout), keptText(f, s.Set))
}

func (s Over) text(f model.Family) string {
	unit := map[time.Duration]string{time.Second: "second", time.Minute: "minute", time.Hour: "hour", 24 * time.Hour: "day"}[s.Period]
	return fmt.Sprintf("update @%s { %s timeout %s limit rate over %d/%s burst %d packets }", s.Set, keyText(f, s.Set.loaded(f), ""), timeText(s.Period), s.Burst, unit, s.Burst)
}

func (s Delete) text(f model.Family) string {
	return fmt.Sprintf("delete @%s { %s%s }", s.Set, keyText(f, s.Set.loaded(f), ""), keptText(f, s.Set))
}

// keptText spells what a rule has a map keep.
func keptText(f model.Family, s *Set) string {
	if s.Data == NoData {
		return ""
	}
	return " : " + keyText(f, addressFields, "")
}

func (s Vmap) text(f model.Family) string {
	return keyText(f, s.Map.Key, "") + " vmap @" + s.Map.Name
}

func (s Goto) text(model.Family) string { return "goto " + s.Chain }

func (s Jump) text(model.Family) string { return "jump " + s.Chain }

func (Return) text(model.Family) string { return "return" }

func (Reject) text(model.Family) string { return "reject" }

func (Accept) text(model.Family) string { return "accept" }

func (Drop) text(model.Family) string { return "drop" }

func (s DNAT) text(model.Family) string { return "dnat to " + s.To.String() }

func (s DNATMap) text(f model.Family) string {
	return "dnat " + FamilyName(f) + " addr . port to " + s.Number.lookupText(f, s.Map)
}

func (Masquerade) text(model.Family) string { return "masquerade fully-random" }

// lookupText spells a lookup in a map, with a number in the key.
func (n Numgen) lookupText(f model.Family, s *Set) string {
	return keyText(f, s.loaded(f), n.text(f)) + " map @" + s.Name
}

func protoText(p model.Proto) string {
	switch p {
	case model.TCP, model.UDP, model.SCTP:
		return p.String()
	}
	return strconv.Itoa(int(p))
}

// prefixText spells a prefix, a single address without its length.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// timeText spells a time in the units of nft, in whole seconds.
func timeText(d time.Duration) string {
	s := int64(max(d.Round(time.Second)/time.Second, 1))
	var b strings.Builder
	for _, u := range []struct {
		name string
		n    int64
	}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}} {
		if n := s / u.n; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			s %= u.n
		}
	}
	return b.String()
}

// printable makes any string safe between the quotes of nft, which knows no
// escapes: what is not printable ASCII, and quotes and backslashes, become '?'.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s)
}

// CommentText makes a comment of any string: plain and at most 127 bytes, as
// the kernel keeps 128 with the zero at its end.
func CommentText(s string) string {
	if len(s) > 512 {
		s = s[:512]
	}
	s = printable(s)
	return s[:min(len(s), 127)]
}
