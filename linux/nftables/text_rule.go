package nftables

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

func (s SourceIn) text(f model.Family) string {
	return familyName(f) + " saddr " + prefixText(s.Prefix)
}

func (s DestinationIn) text(f model.Family) string {
	return familyName(f) + " daddr " + prefixText(s.Prefix)
}

func (s DestinationNotIn) text(f model.Family) string {
	return familyName(f) + " daddr != " + prefixText(s.Prefix)
}

func (s DestinationIsLocal) text(model.Family) string {
	if s.Not {
		return "fib daddr type != local"
	}
	return "fib daddr type local"
}

func (s InputIs) text(model.Family) string {
	name := plain(s.Name)
	if s.Prefix {
		name += "*"
	}
	return `iifname "` + name + `"`
}

func (s ProtocolIs) text(model.Family) string { return "meta l4proto " + protoText(s.Proto) }

func (s MarkHas) text(model.Family) string {
	op := "!="
	if s.Not {
		op = "=="
	}
	return fmt.Sprintf("meta mark & 0x%08x %s 0x00000000", s.Bit, op)
}

func (IsNew) text(model.Family) string { return "ct state new" }

func (IsKnown) text(model.Family) string { return "ct state established,related" }

func (IsInvalid) text(model.Family) string { return "ct state invalid" }

func (NotSYN) text(model.Family) string { return "tcp flags ! syn" }

func (s WasBalanced) text(model.Family) string {
	if s.Not {
		return "ct status ! dnat"
	}
	return "ct status dnat"
}

func (s In) text(f model.Family) string {
	not := ""
	if s.Not {
		not = "!= "
	}
	return keyText(f, sets[s.Set].loaded(f), "") + " " + not + "@" + s.Set.String()
}

func (s SetMark) text(model.Family) string {
	return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Bit)
}

func (s ClearMark) text(model.Family) string {
	return fmt.Sprintf("meta mark set meta mark & 0x%08x", ^s.Bit)
}

func (s Remember) text(f model.Family) string {
	return fmt.Sprintf("update @%s { %s timeout %s%s }", s.Set, keyText(f, sets[s.Set].loaded(f), ""), timeText(s.For), keptText(f, s.Set))
}

func (s Forget) text(f model.Family) string {
	return fmt.Sprintf("delete @%s { %s%s }", s.Set, keyText(f, sets[s.Set].loaded(f), ""), keptText(f, s.Set))
}

// keptText spells what a rule has a map keep.
func keptText(f model.Family, set SetID) string {
	if sets[set].data == nothing {
		return ""
	}
	return " : " + keyText(f, []field{daddr}, "")
}

func (s Put) text(f model.Family) string {
	return keyText(f, []field{s.In}, "") + " set " + keyText(f, sets[s.Map].loaded(f), numberText(s.Count, s.First)) + " map @" + s.Map.String()
}

func (PutBackSource) text(f model.Family) string {
	return keyText(f, []field{saddr}, "") + " set " + keyText(f, []field{client}, "")
}

func (s Look) text(f model.Family) string {
	return keyText(f, sets[s.Map].key, "") + " vmap @" + s.Map.String()
}

func (s Goto) text(model.Family) string { return "goto " + s.Chain }

func (s Jump) text(model.Family) string { return "jump " + s.Chain }

func (Return) text(model.Family) string { return "return" }

func (Refuse) text(model.Family) string { return "reject" }

func (Accept) text(model.Family) string { return "accept" }

func (Discard) text(model.Family) string { return "drop" }

func (s SendTo) text(model.Family) string { return "dnat to " + s.To.String() }

func (s SendToFound) text(f model.Family) string {
	return "dnat " + familyName(f) + " addr . port to " + keyText(f, sets[s.Map].loaded(f), "") + " map @" + s.Map.String()
}

func (s SendToSlot) text(f model.Family) string {
	return "dnat " + familyName(f) + " addr . port to " + keyText(f, sets[s.Map].key, numberText(s.Count, s.First)) + " map @" + s.Map.String()
}

// numberText spells a number by chance.
func numberText(of, first uint32) string {
	number := fmt.Sprintf("numgen random mod %d", of)
	if first > 0 {
		number += fmt.Sprintf(" offset %d", first)
	}
	return number
}

func (Masquerade) text(model.Family) string { return "masquerade fully-random" }

// keyText spells the fields of a key; number stands for the slot.
func keyText(f model.Family, key []field, number string) string {
	parts := make([]string, len(key))
	for i, k := range key {
		switch k {
		case daddr:
			parts[i] = familyName(f) + " daddr"
		case saddr:
			parts[i] = familyName(f) + " saddr"
		case l4proto:
			parts[i] = "meta l4proto"
		case dport:
			parts[i] = "th dport"
		case sport:
			parts[i] = "th sport"
		case slot:
			parts[i] = number
		case client:
			parts[i] = "ct original " + familyName(f) + " saddr"
		case frontAddr:
			parts[i] = "ct original " + familyName(f) + " daddr"
		case hash1, hash2:
			parts[i] = fmt.Sprintf("jhash %s mod %d seed 0x%x", keyText(f, hashedFields, ""), uint32(hashModulus), k-hash1+1)
		}
	}
	return strings.Join(parts, " . ")
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

// plain makes any string safe between the quotes of nft, which knows no
// escapes: what is not printable ASCII, and quotes and backslashes, become '?'.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s)
}

// commentText makes a comment of any string: plain and at most 127 bytes, as
// the kernel keeps 128 with the zero at its end.
func commentText(s string) string {
	if len(s) > 512 {
		s = s[:512]
	}
	s = plain(s)
	return s[:min(len(s), 127)]
}
