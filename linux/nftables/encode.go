package nftables

import (
	"encoding/binary"

	"github.com/tandem-proxy/tandem/core/model"
)

func (s SourceIn) encode(e *encoder) { e.prefix(saddr, equal, s.Prefix) }

func (s DestinationIn) encode(e *encoder) { e.prefix(daddr, equal, s.Prefix) }

func (s DestinationNotIn) encode(e *encoder) { e.prefix(daddr, notEqual, s.Prefix) }

func (s DestinationIsLocal) encode(e *encoder) {
	op := equal
	if s.Not {
		op = notEqual
	}
	e.expr("fib", func() {
		e.Uint32(1, reg0)
		e.Uint32(2, 3) // NFT_FIB_RESULT_ADDRTYPE
		e.Uint32(3, 2) // NFTA_FIB_F_DADDR
	})
	e.cmp(reg0, op, host32(2)) // RTN_LOCAL
}

func (s InputIs) encode(e *encoder) {
	name := []byte(s.Name)
	if !s.Prefix {
		name = append(name, make([]byte, max(16-len(name), 1))...)[:16] // IFNAMSIZ
	}
	e.meta(reg0, metaIIFName)
	e.cmp(reg0, equal, name)
}

func (s ProtocolIs) encode(e *encoder) {
	e.meta(reg0, metaL4Proto)
	e.cmp(reg0, equal, []byte{byte(s.Proto)})
}

func (s MarkHas) encode(e *encoder) {
	e.meta(reg0, metaMark)
	op := notEqual
	if s.Not {
		op = equal
	}
	e.bitwise(host32(s.Bit), host32(0))
	e.cmp(reg0, op, host32(0))
}

func (IsNew) encode(e *encoder) { e.state(1 << 3) } // NF_CT_STATE_BIT(IP_CT_NEW)

func (IsKnown) encode(e *encoder) { e.state(1<<1 | 1<<2) } // IP_CT_ESTABLISHED, IP_CT_RELATED

func (IsInvalid) encode(e *encoder) { e.state(1 << 0) } // NF_CT_STATE_INVALID_BIT

func (NotSYN) encode(e *encoder) {
	e.payload(reg0, baseTransport, 13, 1)
	e.bitwise([]byte{2}, []byte{0}) // TCPHDR_SYN
	e.cmp(reg0, equal, []byte{0})
}

func (s WasBalanced) encode(e *encoder) {
	e.conntrack(2, 1<<5) // NFT_CT_STATUS, IPS_DST_NAT
	op := notEqual
	if s.Not {
		op = equal
	}
	e.cmp(reg0, op, host32(0))
}

func (s In) encode(e *encoder) {
	e.load(sets[s.Set].loaded(e.family))
	e.lookup(s.Set.String(), -1, s.Not)
}

func (s SetMark) encode(e *encoder) { e.mark(^s.Bit, s.Bit) }

func (s ClearMark) encode(e *encoder) { e.mark(^s.Bit, 0) }

func (s Put) encode(e *encoder) {
	reg := e.load(sets[s.Map].loaded(e.family))
	if s.Count > 0 {
		e.numgen(reg, s.Count, s.First)
	}
	e.lookup(s.Map.String(), reg0, false)
	e.store(s.In)
}

func (PutBackSource) encode(e *encoder) {
	e.load([]field{client})
	e.store(saddr)
}

func (s Remember) encode(e *encoder) {
	const update = 1 // NFT_DYNSET_OP_UPDATE
	e.dynset(s.Set, update, s.For)
}

func (s Forget) encode(e *encoder) {
	const remove = 2 // NFT_DYNSET_OP_DELETE
	e.dynset(s.Set, remove, 0)
}

func (s Look) encode(e *encoder) {
	e.load(sets[s.Map].key)
	e.lookup(s.Map.String(), regVerdict, false)
}

func (s Goto) encode(e *encoder) { e.verdict(codeGoto, s.Chain) }

func (s Jump) encode(e *encoder) { e.verdict(codeJump, s.Chain) }

func (Return) encode(e *encoder) { e.verdict(codeReturn, "") }

func (Refuse) encode(e *encoder) {
	port := uint8(3) // ICMP_PORT_UNREACH
	if e.family == model.IPv6 {
		port = 4 // ICMPV6_PORT_UNREACH
	}
	e.expr("reject", func() {
		e.Uint32(1, 0) // NFT_REJECT_ICMP_UNREACH
		e.Uint8(2, port)
	})
}

func (Accept) encode(e *encoder) { e.verdict(codeAccept, "") }

func (Discard) encode(e *encoder) { e.verdict(codeDrop, "") }

func (s SendTo) encode(e *encoder) {
	addr := s.To.Addr().AsSlice()
	port := reg0 + addressLen(e.family)/4
	e.immediate(reg0, addr)
	e.immediate(port, binary.BigEndian.AppendUint16(nil, s.To.Port()))
	e.dnat(2) // NF_NAT_RANGE_PROTO_SPECIFIED, as nft writes it
}

func (s SendToFound) encode(e *encoder) {
	e.load(sets[s.Map].loaded(e.family))
	e.lookup(s.Map.String(), reg0, false)
	e.dnat(0)
}

func (s SendToSlot) encode(e *encoder) {
	e.numgen(e.load(sets[s.Map].key), s.Count, s.First)
	e.lookup(s.Map.String(), reg0, false)
	e.dnat(0)
}

func (Masquerade) encode(e *encoder) {
	e.expr("masq", func() { e.Uint32(1, 0x10) }) // NF_NAT_RANGE_PROTO_RANDOM_FULLY
}
