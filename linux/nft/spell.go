// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// A rule of any program is spelled as nft lists it, as far as its expressions are known here; unknown ones are
// spelled as their name. Expressions load registers, and use those that earlier ones loaded: registers hold texts.

// maxSpelled bounds the text of a rule, in bytes.
const maxSpelled = 400

// spell returns the text of the rule in a message of the kernel.
func spell(m netlink.Message) string {
	s := speller{family: m.Family(), registers: map[uint32]operand{}, compared: map[uint32]operand{}}
	comment := ""
	for kind, v := range m.Attrs() {
		switch kind {
		case attrRuleExpressions:
			for _, one := range netlink.Attrs(v) {
				s.expression(one)
			}
		case attrRuleUserdata:
			comment = netlink.Text(note(v, noteComment))
		}
	}
	if comment != "" {
		s.say(`comment "%s"`, printable(comment))
	}
	text := strings.Join(s.parts, " ")
	if len(text) > maxSpelled {
		text = text[:maxSpelled] + "..." // all of it is ASCII
	}
	return text
}

// speller spells one rule.
type speller struct {
	family    byte // of the table
	registers map[uint32]operand
	compared  map[uint32]operand // operands of comparisons, for a second one of the register
	parts     []string
}

// operand is the content of a register.
type operand struct {
	text string
	kind operandKind
	size int    // of an address, in bytes
	mask []byte // nil: all of it
}

type operandKind uint8

const (
	opaque operandKind = iota
	anAddress
	aPort
	aProto
	aName
	aNumber // of 32 bits, in the byte order of the host
	ctStates
)

func (s *speller) say(format string, args ...any) {
	s.parts = append(s.parts, fmt.Sprintf(format, args...))
}

// attributes are the attributes of an expression, by type.
type attributes map[uint16][]byte

func (a attributes) number(kind uint16) uint32 { return netlink.Uint32(a[kind]) }

// register returns a register of four bytes. The registers 1 to 4 of sixteen bytes (NFT_REG_1 to
// NFT_REG_4) share the memory of every fourth one.
func (a attributes) register(kind uint16) uint32 {
	r := a.number(kind)
	if 1 <= r && r <= 4 {
		return reg0 + (r-1)*4
	}
	return r
}

// value returns a constant.
func (a attributes) value(kind uint16) []byte { return constant(a[kind]) }

func (s *speller) expression(b []byte) {
	name, a := "", attributes{}
	for kind, v := range netlink.Attrs(b) {
		switch kind {
		case attrExprName:
			name = netlink.Text(v)
		case attrExprData:
			for kind, v := range netlink.Attrs(v) {
				a[kind] = v
			}
		}
	}
	switch name {
	case "payload":
		s.payload(a)
	case "meta":
		s.meta(a)
	case "ct":
		s.conntrack(a)
	case "fib":
		of := "fib" // a lookup that is not spelled out
		if a.number(fibResult) == fibAddrType && a.number(fibFlags) == fibDaddrFlag {
			of = fibDaddrType
		}
		s.load(a.register(fibDreg), operand{text: of, kind: aNumber})
	case "numgen":
		by := "inc"
		if a.number(ngType) == ngRandom {
			by = "random"
		}
		s.load(a.register(ngDreg), operand{text: fmt.Sprintf("numgen %s mod %d", by, a.number(ngModulus)) + offsetText(a.number(ngOffset))})
	case "hash":
		of := s.from(a.register(hashSreg))
		s.load(a.register(hashDreg), operand{text: fmt.Sprintf("jhash %s mod %d", of, a.number(hashModulus)) + offsetText(a.number(hashOffset))})
	case "bitwise":
		s.bitwise(a)
	case "cmp":
		s.compare(a)
	case "range":
		o := s.operand(a.register(rangeSreg))
		s.say("%s %s%s-%s", cmp.Or(o.text, "register"), comparison(a.number(rangeOp)), constantText(o.kind, a.value(rangeFromData)), constantText(o.kind, a.value(rangeToData)))
	case "immediate":
		s.immediate(a)
	case "lookup":
		s.lookup(a)
	case "dynset":
		verb := map[uint32]string{dynsetAdd: "add", dynsetUpdate: "update", dynsetDelete: "delete"}[a.number(dynsetOp)]
		s.say("%s @%s { %s }", verb, printable(netlink.Text(a[dynsetSetName])), s.from(a.register(dynsetSregKey)))
	case "nat":
		kind := map[uint32]string{natSNAT: "snat", natDNAT: "dnat"}[a.number(natType)]
		s.say("%s to %s", kind, s.from(a.register(natRegAddrMin)))
	case "masq":
		s.say("masquerade")
	case "redir":
		s.say("redirect")
	case "match", "target":
		s.extension(name, a)
	default: // such as counter, log, limit, reject
		s.say("%s", printable(name))
	}
}

func offsetText(n uint32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" offset %d", n)
}

func (s *speller) load(register uint32, o operand) { s.registers[register] = o }

// operand returns the register's operand for a comparison. A range is two comparisons of one register.
func (s *speller) operand(register uint32) operand {
	o, ok := s.registers[register]
	if !ok {
		o = s.compared[register]
	}
	delete(s.registers, register)
	s.compared[register] = o
	return o
}

// move spells an expression that writes a source register to a field, or loads the field into a
// register.
func (s *speller) move(a attributes, source, destination uint16, o operand) {
	if _, is := a[source]; is {
		s.say("%s set %s", o.text, s.from(a.register(source)))
		return
	}
	s.load(a.register(destination), o)
}

// from joins the registers from one on, and empties them.
func (s *speller) from(register uint32) string {
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(s.registers)) {
		if r >= register {
			parts = append(parts, s.registers[r].text)
			delete(s.registers, r)
		}
	}
	return strings.Join(parts, " . ")
}

func (s *speller) payload(a attributes) {
	base, offset, size := a.number(payloadBase), a.number(payloadOffset), int(a.number(payloadLen))
	o := operand{text: fmt.Sprintf("@%d,%d,%d", base, 8*offset, 8*size)}
	type place struct{ base, offset uint32 }
	transport := map[uint32]string{offsetSport: "th sport", offsetDport: "th dport"}
	switch {
	case base == baseNetwork && size <= 4 && (offset == offsetIPSaddr || offset == offsetIPDaddr):
		o = operand{text: "ip " + map[uint32]string{offsetIPSaddr: "saddr", offsetIPDaddr: "daddr"}[offset], kind: anAddress, size: 4}
	case base == baseNetwork && size <= 16 && (offset == offsetIP6Saddr || offset == offsetIP6Daddr):
		o = operand{text: "ip6 " + map[uint32]string{offsetIP6Saddr: "saddr", offsetIP6Daddr: "daddr"}[offset], kind: anAddress, size: 16}
	case base == baseTransport && size == 2 && transport[offset] != "":
		o = operand{text: transport[offset], kind: aPort}
	case base == baseTransport && offset == offsetTCPFlags && size == 1:
		o = operand{text: "tcp flags"}
	case place{base, offset} == place{baseNetwork, offsetIPProtocol} && size == 1:
		o = operand{text: "ip protocol", kind: aProto}
	}
	s.move(a, payloadSreg, payloadDreg, o)
}

func (s *speller) meta(a attributes) {
	o := operand{text: fmt.Sprintf("meta key %d", a.number(metaKey))}
	switch a.number(metaKey) {
	case metaMark:
		o = operand{text: "meta mark", kind: aNumber}
	case metaIIFName:
		o = operand{text: "iifname", kind: aName}
	case metaOIFName:
		o = operand{text: "oifname", kind: aName}
	case metaNFTrace:
		o.text = "meta nftrace"
	case metaL4Proto:
		o = operand{text: "meta l4proto", kind: aProto}
	}
	s.move(a, metaSreg, metaDreg, o)
}

func (s *speller) conntrack(a attributes) {
	o := operand{text: fmt.Sprintf("ct key %d", a.number(ctKey))}
	switch key := a.number(ctKey); key {
	case ctKeyState:
		o = operand{text: "ct state", kind: ctStates}
	case ctKeyStatus:
		o = operand{text: "ct status", kind: aNumber}
	case ctKeyMark:
		o = operand{text: "ct mark", kind: aNumber}
	case ctKeyProtocol:
		o = operand{text: "ct original protocol", kind: aProto}
	case ctKeySrcIP, ctKeyDstIP:
		o = operand{text: "ct original ip " + [...]string{"saddr", "daddr"}[key-ctKeySrcIP], kind: anAddress, size: 4}
	case ctKeySrcIP6, ctKeyDstIP6:
		o = operand{text: "ct original ip6 " + [...]string{"saddr", "daddr"}[key-ctKeySrcIP6], kind: anAddress, size: 16}
	}
	s.load(a.register(ctDreg), o)
}

func (s *speller) bitwise(a attributes) {
	o := s.registers[a.register(bitwiseSreg)]
	mask, xor := a.value(bitwiseMask), a.value(bitwiseXor)
	set := slices.ContainsFunc(xor, func(b byte) bool { return b != 0 })
	switch {
	case o.kind == anAddress || o.kind == ctStates:
		o.mask = mask
	case o.kind == aNumber && len(mask) == 4 && len(xor) == 4 && binary.NativeEndian.Uint32(mask) == ^binary.NativeEndian.Uint32(xor):
		o.text = fmt.Sprintf("%s | %s", o.text, constantText(aNumber, xor))
	case set:
		o.text = fmt.Sprintf("%s & %s ^ %s", o.text, constantText(o.kind, mask), constantText(o.kind, xor))
	default:
		o.text = fmt.Sprintf("%s & %s", o.text, constantText(o.kind, mask))
	}
	s.load(a.register(bitwiseDreg), o)
}

// fibDaddrType is the text for the type of a destination address.
const fibDaddrType = "fib daddr type"

// comparison returns the text of an operator of cmp (enum nft_cmp_ops).
func comparison(op uint32) string {
	const known = 6
	if op >= known {
		return "?? "
	}
	return [known]string{"", "!= ", "< ", "<= ", "> ", ">= "}[op]
}

func (s *speller) compare(a attributes) {
	register, value, op := a.register(cmpSreg), a.value(cmpData), comparison(a.number(cmpOp))
	o := s.operand(register)
	switch {
	case o.kind == anAddress:
		s.say("%s %s%s", o.text, op, prefixOf(value, o))
	case o.kind == ctStates && len(o.mask) == 4:
		var names []string
		for bit, name := range map[CtStates]string{CtInvalid: "invalid", ctEstablished: "established", ctRelated: "related", CtNew: "new", ctUntracked: "untracked"} {
			if CtStates(binary.NativeEndian.Uint32(o.mask))&bit != 0 {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		if op == "" { // none of them
			op = "!= "
		} else {
			op = ""
		}
		s.say("%s %s%s", o.text, op, strings.Join(names, ","))
	case o.text == fibDaddrType && len(value) == 4:
		kind := map[uint32]string{1: "unicast", 2: "local", 3: "broadcast", 5: "multicast"}[binary.NativeEndian.Uint32(value)]
		s.say("%s %s%s", o.text, op, cmp.Or(kind, constantText(aNumber, value)))
	default:
		if strings.Contains(o.text, "&") {
			op = cmp.Or(op, "== ")
		}
		s.say("%s %s%s", cmp.Or(o.text, "register"), op, constantText(o.kind, value))
	}
}

// prefixOf returns the prefix that an operand is compared with: the first bytes of an address, or one under a mask.
func prefixOf(value []byte, o operand) string {
	whole := make([]byte, o.size)
	n := 8 * copy(whole, value)
	if o.mask != nil {
		n = 0
		for _, b := range o.mask {
			n += bits.OnesCount8(b)
		}
	}
	at, _ := netip.AddrFromSlice(whole)
	if p := netip.PrefixFrom(at, n); p.IsValid() {
		return prefixText(p)
	}
	return fmt.Sprintf("0x%x", value)
}

func constantText(kind operandKind, b []byte) string {
	switch {
	case kind == aPort && len(b) == 2:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case kind == aProto && len(b) == 1:
		return protoText(model.Proto(b[0]))
	case kind == aName:
		name, _, ended := bytes.Cut(b, []byte{0})
		if !ended {
			name = append(slices.Clone(name), '*') // a prefix
		}
		return `"` + printable(string(name)) + `"`
	case kind == aNumber && len(b) == 4:
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(b))
	}
	return fmt.Sprintf("0x%x", b)
}

func (s *speller) immediate(a attributes) {
	register := a.register(immediateDreg)
	if register != regVerdict {
		value := a.value(immediateData)
		text := constantText(opaque, value)
		switch at, is := netip.AddrFromSlice(value); {
		case is:
			text = at.String()
		case len(value) == 2:
			text = constantText(aPort, value)
		}
		s.load(register, operand{text: text})
		return
	}
	for kind, v := range netlink.Attrs(a[immediateData]) {
		if kind == attrDataVerdict {
			s.say("%s", printable(verdictName(v)))
		}
	}
}

func (s *speller) lookup(a attributes) {
	set, of := "@"+printable(netlink.Text(a[lookupSet])), s.from(a.register(lookupSreg))
	_, mapped := a[lookupDreg]
	switch {
	case mapped && a.register(lookupDreg) == regVerdict:
		s.say("%s vmap %s", of, set)
	case mapped:
		s.load(a.register(lookupDreg), operand{text: of + " map " + set})
	case a.number(lookupFlags)&lookupInverse != 0:
		s.say("%s != %s", of, set)
	default:
		s.say("%s %s", of, set)
	}
}

// extension spells a match or target of iptables-nft. Of its data only the text of a comment is shown.
func (s *speller) extension(what string, a attributes) {
	extension := printable(netlink.Text(a[matchName]))
	switch {
	case what == "target":
		s.say("-j %s", extension)
	case extension == "comment":
		text, _, _ := bytes.Cut(a[matchInfo], []byte{0})
		s.say("/* %s */", printable(string(text)))
	default:
		s.say("-m %s", extension)
	}
}

func verdictName(b []byte) string {
	var code uint32
	chain := ""
	for attr, v := range netlink.Attrs(b) {
		switch attr {
		case attrVerdictCode:
			code = netlink.Uint32(v)
		case attrVerdictChain:
			chain = netlink.Text(v)
		}
	}
	return verdictOf(code, chain)
}

func verdictOf(code uint32, chain string) string {
	switch code {
	case codeDrop:
		return "drop"
	case codeAccept:
		return "accept"
	case codeJump:
		return "jump " + chain
	case codeGoto:
		return "goto " + chain
	case codeReturn:
		return "return"
	case codeNext, codeBreak:
		return "continue"
	}
	return fmt.Sprintf("verdict %d", int32(code))
}
