// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

func (s SourceIn) encode(e *encoder) { e.prefix(Saddr, equal, s.Prefix) }

func (s DestinationIn) encode(e *encoder) {
	op := equal
	if s.Not {
		op = notEqual
	}
	e.prefix(Daddr, op, s.Prefix)
}

func (s FibLocal) encode(e *encoder) {
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

func (s IifName) encode(e *encoder) {
	name := []byte(s.Name)
	if !s.Prefix {
		name = append(name, make([]byte, max(16-len(name), 1))...)[:16] // IFNAMSIZ
	}
	e.meta(reg0, metaIIFName)
	e.cmp(reg0, equal, name)
}

func (s L4ProtoIs) encode(e *encoder) {
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

func (s CtState) encode(e *encoder) {
	e.conntrack(0, uint32(s.States)) // NFT_CT_STATE
	e.cmp(reg0, notEqual, host32(0))
}

func (NotSYN) encode(e *encoder) {
	e.payload(reg0, baseTransport, 13, 1)
	e.bitwise([]byte{2}, []byte{0}) // TCPHDR_SYN
	e.cmp(reg0, equal, []byte{0})
}

func (s CtDNAT) encode(e *encoder) {
	e.conntrack(2, 1<<5) // NFT_CT_STATUS, IPS_DST_NAT
	op := notEqual
	if s.Not {
		op = equal
	}
	e.cmp(reg0, op, host32(0))
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
	const update = 1 // NFT_DYNSET_OP_UPDATE
	e.dynset(s.Set, update, s.Timeout, nil)
}

func (s Over) encode(e *encoder) {
	const update = 1
	e.dynset(s.Set, update, s.Period, func() {
		at := e.Nest(7) // NFTA_DYNSET_EXPR
		e.Text(1, "limit")
		data := e.Nest(2)
		e.Uint64(1, uint64(s.Burst))
		e.Uint64(2, uint64(s.Period/time.Second))
		e.Uint32(3, s.Burst)
		e.Uint32(4, 0) // NFT_LIMIT_PKTS
		e.Uint32(5, 1) // NFT_LIMIT_F_INV
		e.NestEnd(data)
		e.NestEnd(at)
	})
}

func (s Delete) encode(e *encoder) {
	const remove = 2 // NFT_DYNSET_OP_DELETE
	e.dynset(s.Set, remove, 0, nil)
}

func (s Vmap) encode(e *encoder) {
	e.load(s.Map.Key)
	e.lookup(s.Map, regVerdict, false)
}

func (s Goto) encode(e *encoder) { e.verdict(codeGoto, s.Chain) }

func (s Jump) encode(e *encoder) { e.verdict(codeJump, s.Chain) }

func (Return) encode(e *encoder) { e.verdict(codeReturn, "") }

func (Reject) encode(e *encoder) {
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

func (Drop) encode(e *encoder) { e.verdict(codeDrop, "") }

func (s DNAT) encode(e *encoder) {
	addr := s.To.Addr().AsSlice()
	port := reg0 + addressLen(e.family)/4
	e.immediate(reg0, addr)
	e.immediate(port, binary.BigEndian.AppendUint16(nil, s.To.Port()))
	e.dnat(2) // NF_NAT_RANGE_PROTO_SPECIFIED, as nft writes it
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
	e.expr("masq", func() { e.Uint32(1, 0x10) }) // NF_NAT_RANGE_PROTO_RANDOM_FULLY
}
