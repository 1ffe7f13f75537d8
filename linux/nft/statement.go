// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Rule is a list of statements, applied from left to right until a match fails.
type Rule struct {
	Statements []Statement
	Comment    string
}

// NewRule makes a rule without a comment.
func NewRule(s ...Statement) Rule { return Rule{Statements: s} }

// Statement is one part of a rule: a value of one of the types below, from which text,
// netlink messages and evaluation are derived.
type Statement interface {
	text(model.Family) string // as nft spells it
	encode(*encoder)          // as netlink expressions
	// eval applies the statement to the step, and returns nil; or it returns all steps that are possible, if
	// there may be several.
	eval(*Sim, *step) []step
}

// CtStates are states of connection tracking.
type CtStates uint32

const (
	CtInvalid CtStates = 1 << 0 // NF_CT_STATE_INVALID_BIT
	CtKnown   CtStates = ctEstablished | ctRelated
	CtNew     CtStates = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)

	ctEstablished CtStates = 1 << 1 // NF_CT_STATE_BIT of IP_CT_ESTABLISHED, IP_CT_RELATED
	ctRelated     CtStates = 1 << 2
	ctUntracked   CtStates = 1 << 6 // NF_CT_STATE_UNTRACKED_BIT
)

// Matches.
type (
	// SourceIn matches senders in a prefix: "ip saddr".
	SourceIn struct{ Prefix netip.Prefix }

	// DestinationIn matches packets to a prefix: "ip daddr".
	DestinationIn struct {
		Prefix netip.Prefix
		Not    bool
	}

	// FibLocal matches packets to an address of this host: "fib daddr type local".
	FibLocal struct{ Not bool }

	// IifName matches packets that came in by an interface or, with Prefix, by any
	// whose name has the prefix.
	IifName struct {
		Name   string
		Prefix bool
	}

	// L4ProtoIs matches packets of one protocol: "meta l4proto".
	L4ProtoIs struct{ Proto model.Proto }

	// MarkHas matches packets whose mark has the bit: "meta mark & bit != 0".
	MarkHas struct {
		Bit uint32
		Not bool
	}

	// CtState matches packets in one of the states.
	CtState struct{ States CtStates }

	// CtDNAT matches connections with DNAT, by Tandem or another program: "ct
	// status dnat".
	CtDNAT struct{ Not bool }

	// NotSYN matches TCP packets without the flag SYN: "tcp flags ! syn".
	NotSYN struct{}

	// Lookup matches packets whose key is in a set: "@set".
	Lookup struct {
		Set *Set
		Not bool
	}
)

// Statements that change a packet, or a set.
type (
	// SetMark and ClearMark change one bit of the packet's mark: "meta mark set".
	SetMark   struct{ Bit uint32 }
	ClearMark struct{ Bit uint32 }

	// SetAddr sets the packet's Saddr or Daddr to the address that a map has for the
	// packet, if any: "ip daddr set ... map @map".
	SetAddr struct {
		Field  Field
		Map    *Set
		Number Numgen
	}

	// RestoreSource sets the packet's source to that of the connection's first packet: "ip saddr
	// set ct original ip saddr".
	RestoreSource struct{}

	// Update adds the packet's key to a set or map, or restarts its timeout. A map stores the
	// destination of the first packet with it. It matches, unless the set is full.
	Update struct {
		Set     *Set
		Timeout time.Duration
	}

	// Delete removes the packet's key from a set or map.
	Delete struct{ Set *Set }

	// Over counts packets by their key in a set, and matches those beyond Burst and, since
	// then, Burst in each Period: "update @set { key limit rate over ... }". It does not match
	// where the set has no room for the key.
	Over struct {
		Set    *Set
		Burst  uint32
		Period time.Duration // a unit of nft: a second, a minute, an hour or a day
	}
)

// Verdicts, and NAT.
type (
	// Vmap applies the verdict that a verdict map has for the packet, if any.
	Vmap struct{ Map *Set }

	// Goto continues in another chain and does not return.
	Goto struct{ Chain string }

	// Jump continues in another chain, and returns if that does not decide.
	Jump struct{ Chain string }

	// Return ends the chain, and continues after the Jump to it.
	Return struct{}

	// Reject drops the packet and answers with ICMP port unreachable.
	Reject struct{}

	// Accept ends the hook's chain, and the packet passes.
	Accept struct{}

	// Drop drops the packet without an answer.
	Drop struct{}

	// DNAT rewrites the destination.
	DNAT struct{ To netip.AddrPort }

	// DNATMap rewrites the destination to the endpoint that a map has for the packet,
	// if any: "dnat ip addr . port to ... map @map".
	DNATMap struct {
		Map    *Set
		Number Numgen
	}

	// Masquerade rewrites the source to an address of this host.
	Masquerade struct{}
)

// Sim runs packets through objects as the kernel would, but follows every branch of a
// random choice.
type Sim struct {
	objects map[Key]Value
	host    *model.Host
	ranges  map[*Set][]Key
	hooks   map[attachment][]Key // chains in the order in which packets meet them
	asked   func(Key)            // called for each Single key that is looked up; may be nil
}

// packet is a packet in flight.
type packet struct {
	oracle.Packet
	family model.Family
	mark   uint32
	dnat   bool           // Dst is an endpoint's
	origin *oracle.Packet // before any rewrite
	kept   netip.Addr     // written to a map by Update
	forgot bool           // the client was removed from the map by Delete
	chance float64        // probability of this step
	met    int            // statements met so far
}

// step is one possible effect of a statement on a packet.
type step struct {
	packet
	to    direction
	chain string // for toChain and throughChain
}

type direction uint8

const (
	onward  direction = iota // to the next statement
	nowhere                  // no match: to the next rule
	toChain
	throughChain // and back
	returned     // from the chain: accepted if no chain jumped here
	accepted
	masqueraded
	rejected
	dropped
)

// Numgen generates the Number of a key: Offset <= number < Offset+Mod. The zero value is none.
type Numgen struct {
	Mod, Offset uint32
	By          Generator
}

// Generator is how a number is chosen.
type Generator uint8

const (
	AtRandom  Generator = iota // "numgen random"
	InTurn                     // "numgen inc": each rule counts for itself
	ByJenkins                  // "jhash" of clientFields, the same on all hosts of one byte order
)

// clientFields are the fields that ByJenkins hashes.
var clientFields = []Field{Saddr, Sport}

func (n Numgen) text(f model.Family) string {
	var text string
	switch n.By {
	case ByJenkins:
		text = fmt.Sprintf("jhash %s mod %d seed 0x%x", keyText(f, clientFields, ""), n.Mod, model.HashSeed)
	case InTurn:
		text = fmt.Sprintf("numgen inc mod %d", n.Mod)
	default:
		text = fmt.Sprintf("numgen random mod %d", n.Mod)
	}
	if n.Offset > 0 {
		text += fmt.Sprintf(" offset %d", n.Offset)
	}
	return text
}

func (n Numgen) encode(e *encoder, reg int) {
	if n.By == ByJenkins {
		e.jhash(reg, clientFields, n.Mod, model.HashSeed, n.Offset)
		return
	}
	choice := uint32(ngRandom)
	if n.By == InTurn {
		choice = ngIncremental
	}
	e.expr("numgen", func() {
		e.Uint32(ngDreg, uint32(reg))
		e.Uint32(ngModulus, n.Mod)
		e.Uint32(ngType, choice)
		if n.Offset > 0 {
			e.Uint32(ngOffset, n.Offset)
		}
	})
}

// eval ranges over the numbers that a packet may get, all with the same chance.
func (n Numgen) eval(p packet) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if n.By == ByJenkins && p.Sport != 0 {
			yield(n.Offset + model.HashSlot(netip.AddrPortFrom(p.Src, p.Sport), n.Mod))
			return
		}
		for i := range max(n.Mod, 1) {
			if !yield(n.Offset + i) {
				return
			}
		}
	}
}

// chances returns the number of numbers that eval yields.
func (n Numgen) chances(p packet) float64 {
	if n.By == ByJenkins && p.Sport != 0 {
		return 1
	}
	return float64(max(n.Mod, 1))
}

// The texts are as nft 1.0.6 lists them, unless it cannot load its own listing.

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

// keptText spells the data that Update and Delete write to a map.
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

// printable makes any string safe between the quotes of nft, which has no escapes: quotes,
// backslashes and all that is not printable ASCII become '?'.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s)
}

// CommentText makes a comment that nft accepts of any string: printable and at most 127
// bytes (NFTNL_UDATA_COMMENT_MAXLEN is 128 with the terminating zero).
func CommentText(s string) string {
	if len(s) > 512 {
		s = s[:512]
	}
	s = printable(s)
	return s[:min(len(s), 127)]
}

func (s SourceIn) encode(e *encoder) { e.prefix(Saddr, equal, s.Prefix) }

func (s DestinationIn) encode(e *encoder) { e.prefix(Daddr, equalOr(s.Not), s.Prefix) }

func (s FibLocal) encode(e *encoder) {
	e.expr("fib", func() {
		e.Uint32(fibDreg, reg0)
		e.Uint32(fibResult, fibAddrType)
		e.Uint32(fibFlags, fibDaddrFlag)
	})
	e.cmp(equalOr(s.Not), host32(routeLocal))
}

func (s IifName) encode(e *encoder) {
	name := []byte(s.Name)
	if !s.Prefix {
		name = append(name, make([]byte, max(16-len(name), 1))...)[:16] // IFNAMSIZ
	}
	e.meta(reg0, metaIIFName)
	e.cmp(equal, name)
}

func (s L4ProtoIs) encode(e *encoder) {
	e.meta(reg0, metaL4Proto)
	e.cmp(equal, []byte{byte(s.Proto)})
}

func (s MarkHas) encode(e *encoder) {
	e.meta(reg0, metaMark)
	e.bitwise(host32(s.Bit), host32(0))
	e.cmp(equalOr(!s.Not), host32(0))
}

func (s CtState) encode(e *encoder) {
	e.conntrack(ctKeyState, uint32(s.States))
	e.cmp(notEqual, host32(0))
}

func (NotSYN) encode(e *encoder) {
	e.payload(reg0, baseTransport, offsetTCPFlags, 1)
	e.bitwise([]byte{tcpSYN}, []byte{0})
	e.cmp(equal, []byte{0})
}

func (s CtDNAT) encode(e *encoder) {
	e.conntrack(ctKeyStatus, statusDNAT)
	e.cmp(equalOr(!s.Not), host32(0))
}

func (s Lookup) encode(e *encoder) {
	e.load(s.Set.loaded(e.family))
	e.lookup(s.Set, -1, s.Not)
}

func (s SetMark) encode(e *encoder) { e.mark(^s.Bit, s.Bit) }

func (s ClearMark) encode(e *encoder) { e.mark(^s.Bit, 0) }

func (s SetAddr) encode(e *encoder) {
	e.lookupNumber(s.Map, s.Number)
	e.store(s.Field)
}

func (RestoreSource) encode(e *encoder) {
	e.load([]Field{CtSaddr})
	e.store(Saddr)
}

func (s Update) encode(e *encoder) {
	e.dynset(s.Set, dynsetUpdate, s.Timeout, nil)
}

func (s Over) encode(e *encoder) {
	e.dynset(s.Set, dynsetUpdate, s.Period, func() {
		at := e.Nest(dynsetExpr)
		e.Text(attrExprName, "limit")
		data := e.Nest(attrExprData)
		e.Uint64(limitRate, uint64(s.Burst))
		e.Uint64(limitUnit, uint64(s.Period/time.Second))
		e.Uint32(limitBurst, s.Burst)
		e.Uint32(limitType, limitPackets)
		e.Uint32(limitFlags, limitInverse)
		e.NestEnd(data)
		e.NestEnd(at)
	})
}

func (s Delete) encode(e *encoder) {
	e.dynset(s.Set, dynsetDelete, 0, nil)
}

func (s Vmap) encode(e *encoder) {
	e.load(s.Map.Key)
	e.lookup(s.Map, regVerdict, false)
}

func (s Goto) encode(e *encoder) { e.verdict(codeGoto, s.Chain) }

func (s Jump) encode(e *encoder) { e.verdict(codeJump, s.Chain) }

func (Return) encode(e *encoder) { e.verdict(codeReturn, "") }

func (Reject) encode(e *encoder) {
	port := uint8(icmpPortUnreach)
	if e.family == model.IPv6 {
		port = icmpv6PortUnreach
	}
	e.expr("reject", func() {
		e.Uint32(rejectType, rejectUnreachable)
		e.Uint8(rejectICMPCode, port)
	})
}

func (Accept) encode(e *encoder) { e.verdict(codeAccept, "") }

func (Drop) encode(e *encoder) { e.verdict(codeDrop, "") }

func (s DNAT) encode(e *encoder) {
	addr := s.To.Addr().AsSlice()
	port := reg0 + addressLen(e.family)/4
	e.immediate(reg0, addr)
	e.immediate(port, binary.BigEndian.AppendUint16(nil, s.To.Port()))
	e.dnat(natSpecified) // as nft writes it
}

func (s DNATMap) encode(e *encoder) {
	e.lookupNumber(s.Map, s.Number)
	e.dnat(0)
}

// lookupNumber looks the packet up in a map, with a number in the key.
func (e *encoder) lookupNumber(s *Set, n Numgen) {
	reg := e.load(s.loaded(e.family))
	if n.Mod > 0 {
		n.encode(e, reg)
	}
	e.lookup(s, reg0, false)
}

func (Masquerade) encode(e *encoder) {
	e.expr("masq", func() { e.Uint32(masqFlags, natRandomFully) })
}

// match continues with the next statement, or if not ok with the next rule.
func (p *step) match(ok bool) []step {
	if ok {
		return p.end(onward)
	}
	return p.end(nowhere)
}

// end sets the direction of a step.
func (p *step) end(to direction) []step {
	p.to = to
	return nil
}

func (st SourceIn) eval(_ *Sim, p *step) []step { return p.match(st.Prefix.Contains(p.Src)) }

func (st DestinationIn) eval(_ *Sim, p *step) []step {
	return p.match(st.Prefix.Contains(p.Dst.Addr()) != st.Not)
}

func (st FibLocal) eval(s *Sim, p *step) []step {
	return p.match(s.local(&p.packet) != st.Not)
}

func (st IifName) eval(_ *Sim, p *step) []step {
	if st.Prefix {
		return p.match(strings.HasPrefix(p.Iface, st.Name))
	}
	return p.match(p.Iface == st.Name)
}

func (st L4ProtoIs) eval(_ *Sim, p *step) []step { return p.match(p.Proto == st.Proto) }

func (st MarkHas) eval(_ *Sim, p *step) []step { return p.match((p.mark&st.Bit != 0) != st.Not) }

// eval: a simulated packet is the first of its connection.
func (st CtState) eval(_ *Sim, p *step) []step { return p.match(st.States&CtNew != 0) }

// eval: see CtState.
func (NotSYN) eval(_ *Sim, p *step) []step { return p.match(false) }

func (st CtDNAT) eval(_ *Sim, p *step) []step { return p.match(p.dnat != st.Not) }

func (st Lookup) eval(s *Sim, p *step) []step {
	_, ok := s.element(st.Set, &p.packet, 0)
	return p.match(ok != st.Not)
}

func (st SetMark) eval(_ *Sim, p *step) []step {
	p.mark |= st.Bit
	return p.match(true)
}

func (st ClearMark) eval(_ *Sim, p *step) []step {
	p.mark &^= st.Bit
	return p.match(true)
}

// eval changes the packet only, not the objects: later packets do not see the element. The
// set is never full.
func (st Update) eval(s *Sim, p *step) []step {
	if _, known := s.element(st.Set, &p.packet, 0); !known {
		p.kept = p.Dst.Addr()
	}
	return p.match(true)
}

// eval: there are no earlier packets, so none is over the limit.
func (Over) eval(_ *Sim, p *step) []step { return p.match(false) }

func (Delete) eval(_ *Sim, p *step) []step {
	p.kept, p.forgot = netip.Addr{}, true
	return p.match(true)
}

func (st SetAddr) eval(s *Sim, p *step) []step {
	ends := []step{}
	for i := range st.Number.eval(p.packet) {
		v, ok := s.element(st.Map, &p.packet, i)
		to := *p
		to.chance /= st.Number.chances(p.packet)
		if a := v.Endpoint(p.family).Addr(); ok && st.Field == Saddr {
			to.Src = a
		} else if ok {
			to.Dst = netip.AddrPortFrom(a, p.Dst.Port())
		}
		to.match(ok)
		ends = append(ends, to)
	}
	return ends
}

func (RestoreSource) eval(_ *Sim, p *step) []step {
	p.Src = p.origin.Src
	return p.match(true)
}

func (st Vmap) eval(s *Sim, p *step) []step {
	v, ok := s.element(st.Map, &p.packet, 0)
	switch {
	case !ok:
		return p.match(false)
	case v.Body.Verdict == VerdictDrop:
		return p.end(dropped)
	}
	return Goto{v.Body.Goto}.eval(s, p)
}

func (st Goto) eval(_ *Sim, p *step) []step {
	p.chain = st.Chain
	return p.end(toChain)
}

func (st Jump) eval(_ *Sim, p *step) []step {
	p.chain = st.Chain
	return p.end(throughChain)
}

func (Return) eval(_ *Sim, p *step) []step { return p.end(returned) }

func (Reject) eval(_ *Sim, p *step) []step { return p.end(rejected) }

func (Accept) eval(_ *Sim, p *step) []step { return p.end(accepted) }

func (Drop) eval(_ *Sim, p *step) []step { return p.end(dropped) }

func (st DNAT) eval(_ *Sim, p *step) []step {
	p.Dst, p.dnat = st.To, true
	return p.end(accepted)
}

// eval joins the steps of all numbers that lead to one endpoint: a lookup table of hashes
// has a thousand numbers.
func (st DNATMap) eval(s *Sim, p *step) []step {
	ends := []step{}
	known := map[netip.AddrPort]int{}
	for i := range st.Number.eval(p.packet) {
		v, ok := s.element(st.Map, &p.packet, i)
		to := *p
		to.chance /= st.Number.chances(p.packet)
		if !ok {
			to.match(false)
			ends = append(ends, to)
			continue
		}
		to.Dst, to.dnat = v.Endpoint(p.family), true
		if at, again := known[to.Dst]; again {
			ends[at].chance += to.chance
			continue
		}
		known[to.Dst] = len(ends)
		to.end(accepted)
		ends = append(ends, to)
	}
	return ends
}

func (Masquerade) eval(_ *Sim, p *step) []step { return p.end(masqueraded) }
