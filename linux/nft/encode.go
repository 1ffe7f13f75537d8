// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// encoder writes the expressions of a rule. Each statement uses registers from reg0 on, and
// relies on none that an earlier statement has set.
type encoder struct {
	*netlink.Writer
	family model.Family
}

// The registers are of four bytes each; a verdict has a register of its own.
const (
	regVerdict = 0
	reg0       = 8 // NFT_REG32_00
)

// expr writes one expression.
func (e *encoder) expr(name string, attrs func()) {
	elem := e.Nest(attrListItem)
	e.Text(attrExprName, name)
	if attrs != nil {
		data := e.Nest(attrExprData)
		attrs()
		e.NestEnd(data)
	}
	e.NestEnd(elem)
}

// value writes a constant.
func (e *encoder) value(kind uint16, b []byte) {
	at := e.Nest(kind)
	e.Bytes(attrDataValue, b)
	e.NestEnd(at)
}

const (
	baseNetwork   = 1 // NFT_PAYLOAD_NETWORK_HEADER
	baseTransport = 2 // NFT_PAYLOAD_TRANSPORT_HEADER
)

func (e *encoder) payload(reg, base, offset, size int) {
	e.expr("payload", func() {
		e.Uint32(payloadDreg, uint32(reg))
		e.Uint32(payloadBase, uint32(base))
		e.Uint32(payloadOffset, uint32(offset))
		e.Uint32(payloadLen, uint32(size))
	})
}

// Keys of meta (enum nft_meta_keys).
const (
	metaMark    = 3
	metaIIFName = 6
	metaOIFName = 7
	metaNFTrace = 12
	metaL4Proto = 16
)

func (e *encoder) meta(reg, key int) {
	e.expr("meta", func() {
		e.Uint32(metaDreg, uint32(reg))
		e.Uint32(metaKey, uint32(key))
	})
}

// setMeta writes reg0 to the packet.
func (e *encoder) setMeta(key uint32) {
	e.expr("meta", func() {
		e.Uint32(metaKey, key)
		e.Uint32(metaSreg, reg0)
	})
}

const (
	equal    = 0 // NFT_CMP_EQ
	notEqual = 1 // NFT_CMP_NEQ
)

// equalOr returns the comparison equal, or with not its opposite.
func equalOr(not bool) int {
	if not {
		return notEqual
	}
	return equal
}

// cmp compares reg0.
func (e *encoder) cmp(op int, value []byte) {
	e.expr("cmp", func() {
		e.Uint32(cmpSreg, reg0)
		e.Uint32(cmpOp, uint32(op))
		e.value(cmpData, value)
	})
}

// bitwise computes reg0 = reg0 & mask ^ xor.
func (e *encoder) bitwise(mask, xor []byte) {
	e.expr("bitwise", func() {
		e.Uint32(bitwiseSreg, reg0)
		e.Uint32(bitwiseDreg, reg0)
		e.Uint32(bitwiseLen, uint32(len(mask)))
		e.value(bitwiseMask, mask)
		e.value(bitwiseXor, xor)
	})
}

// Codes of verdicts (enum nft_verdicts, NF_DROP and NF_ACCEPT).
const (
	codeDrop   = 0
	codeAccept = 1 // NF_ACCEPT
	codeReturn = 0xfffffffb
	codeGoto   = 0xfffffffc
	codeJump   = 0xfffffffd
	codeBreak  = 0xfffffffe
	codeNext   = 0xffffffff // NFT_CONTINUE
)

func (e *encoder) verdictData(code uint32, chain string) {
	at := e.Nest(attrDataVerdict)
	e.Uint32(attrVerdictCode, code)
	if chain != "" {
		e.Text(attrVerdictChain, chain)
	}
	e.NestEnd(at)
}

func (e *encoder) verdict(code uint32, chain string) {
	e.expr("immediate", func() {
		e.Uint32(immediateDreg, regVerdict)
		data := e.Nest(immediateData)
		e.verdictData(code, chain)
		e.NestEnd(data)
	})
}

// lookup looks up the key in the registers from reg0 on in a set; dreg is the register for the
// data of a map, or -1.
func (e *encoder) lookup(set *Set, dreg int, not bool) {
	e.expr("lookup", func() {
		e.Text(lookupSet, set.Name)
		e.Uint32(lookupSreg, reg0)
		if dreg >= 0 {
			e.Uint32(lookupDreg, uint32(dreg))
		}
		if not {
			e.Uint32(lookupFlags, lookupInverse)
		}
	})
}

// load loads a key into the registers from reg0 on, up to a Number. It returns the next
// register.
func (e *encoder) load(key []Field) (reg int) {
	reg = reg0
	for _, k := range key {
		if k == Number {
			return reg
		}
		e.field(reg, k)
		reg += (fieldLen(e.family, k) + 3) / 4
	}
	return reg
}

// field loads one field.
func (e *encoder) field(reg int, k Field) {
	switch k {
	case L4Proto:
		e.meta(reg, metaL4Proto)
	case CtProto:
		e.original(reg, ctKeyProtocol)
	case CtID:
		e.expr("ct", func() {
			e.Uint32(ctDreg, uint32(reg))
			e.Uint32(ctKey, ctKeyID)
		})
	case Dport:
		e.payload(reg, baseTransport, offsetDport, 2)
	case Sport:
		e.payload(reg, baseTransport, offsetSport, 2)
	case CtSaddr, CtDaddr:
		keys := [...]map[Field]uint32{
			model.IPv4: {CtSaddr: ctKeySrcIP, CtDaddr: ctKeyDstIP},
			model.IPv6: {CtSaddr: ctKeySrcIP6, CtDaddr: ctKeyDstIP6},
		}
		e.original(reg, keys[e.family][k])
	case hash1, hash2:
		e.jhash(reg, hashedFields, hashValues, uint32(k-hash1)+1, 0)
	default:
		e.payload(reg, baseNetwork, e.offset(k), addressLen(e.family))
	}
}

// original loads a field of the connection's original direction.
func (e *encoder) original(reg int, key uint32) {
	e.expr("ct", func() {
		e.Uint32(ctDreg, uint32(reg))
		e.Uint32(ctKey, key)
		e.Uint8(ctDirection, dirOriginal)
	})
}

// regHashed is the first register for fields to be hashed, behind those of a key and its data.
const regHashed = reg0 + 7

// jhash loads a hash of fields, scaled to be less than the modulus.
func (e *encoder) jhash(reg int, fields []Field, modulus, seed, offset uint32) {
	at := regHashed
	for _, k := range fields {
		e.field(at, k)
		at += (fieldLen(e.family, k) + 3) / 4
	}
	e.expr("hash", func() {
		e.Uint32(hashSreg, regHashed)
		e.Uint32(hashDreg, uint32(reg))
		e.Uint32(hashLen, uint32(4*(at-regHashed)))
		e.Uint32(hashModulus, modulus)
		e.Uint32(hashSeed, seed)
		if offset > 0 {
			e.Uint32(hashOffset, offset)
		}
		e.Uint32(hashType, hashJenkins)
	})
}

// store writes reg0 over an address of the packet, and corrects its checksums.
func (e *encoder) store(k Field) {
	e.expr("payload", func() {
		e.Uint32(payloadBase, baseNetwork)
		e.Uint32(payloadOffset, uint32(e.offset(k)))
		e.Uint32(payloadLen, uint32(addressLen(e.family)))
		e.Uint32(payloadSreg, reg0)
		if e.family == model.IPv4 {
			e.Uint32(payloadCsumType, csumInet)
			e.Uint32(payloadCsumOffset, offsetIPChecksum)
		}
		e.Uint32(payloadCsumFlags, csumPseudo)
	})
}

// dynset writes the packet's key to a set or, with the packet's destination as data, to a
// map. Own, if not nil, writes an expression of the element.
func (e *encoder) dynset(set *Set, op uint32, timeout time.Duration, own func()) {
	data := e.load(set.loaded(e.family)) // behind the key
	if set.Data != NoData {
		e.payload(data, baseNetwork, e.offset(Daddr), addressLen(e.family))
	}
	e.expr("dynset", func() {
		e.Text(dynsetSetName, set.Name)
		e.Uint32(dynsetOp, op)
		e.Uint32(dynsetSregKey, reg0)
		if set.Data != NoData {
			e.Uint32(dynsetSregData, uint32(data))
		}
		if timeout > 0 {
			e.Uint64(dynsetTimeout, uint64(timeout/time.Millisecond))
		}
		if own != nil {
			own()
		}
	})
}

// offset returns the offset of an address in the network header.
func (e *encoder) offset(k Field) int {
	if e.family == model.IPv4 {
		return map[Field]int{Saddr: offsetIPSaddr, Daddr: offsetIPDaddr}[k]
	}
	return map[Field]int{Saddr: offsetIP6Saddr, Daddr: offsetIP6Daddr}[k]
}

// prefix compares an address with a prefix, as nft does: without a mask if it is of whole
// bytes.
func (e *encoder) prefix(k Field, op int, p netip.Prefix) {
	p = p.Masked()
	b := p.Addr().AsSlice()
	n := max(p.Bits()/8, 1)
	if p.Bits()%8 == 0 && p.Bits() > 0 {
		e.payload(reg0, baseNetwork, e.offset(k), n)
		e.cmp(op, b[:n])
		return
	}
	mask := make([]byte, len(b))
	for i := range p.Bits() {
		mask[i/8] |= 1 << (7 - i%8)
	}
	e.payload(reg0, baseNetwork, e.offset(k), len(b))
	e.bitwise(mask, make([]byte, len(b)))
	e.cmp(op, b)
}

func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// conntrack loads some bits of a field of connection tracking.
func (e *encoder) conntrack(key, bit uint32) {
	e.expr("ct", func() {
		e.Uint32(ctDreg, reg0)
		e.Uint32(ctKey, key)
	})
	e.bitwise(host32(bit), host32(0))
}

func (e *encoder) mark(mask, xor uint32) {
	e.meta(reg0, metaMark)
	e.bitwise(host32(mask), host32(xor))
	e.setMeta(metaMark)
}

func (e *encoder) immediate(reg int, value []byte) {
	e.expr("immediate", func() {
		e.Uint32(immediateDreg, uint32(reg))
		e.value(immediateData, value)
	})
}

// dnat rewrites the destination to the address in reg0 and the port behind it.
func (e *encoder) dnat(flags uint32) {
	port := uint32(reg0 + addressLen(e.family)/4)
	e.expr("nat", func() {
		e.Uint32(natType, natDNAT)
		e.Uint32(natFamily, uint32(netlink.FamilyOf(e.family)))
		e.Uint32(natRegAddrMin, reg0)
		e.Uint32(natRegProtoMin, port)
		if flags != 0 {
			e.Uint32(natFlags, flags)
		}
	})
}

// element writes an element into the open list of its set: whole, or for a deletion or a
// request its key only.
func (e *encoder) element(k Key, v Value, whole bool) {
	switch {
	case k.Kind == KindForeign:
		at := e.Nest(attrListItem)
		raw, _ := k.Detail.value().(rawKey)
		e.Buf = append(e.Buf, raw...)
		e.NestEnd(at)
	case k.Set.ranges():
		e.rangeElements(k, whole)
	default:
		e.plainElement(k, v, whole)
	}
}

func (e *encoder) plainElement(k Key, v Value, whole bool) {
	at := e.Nest(attrListItem)
	e.key(elemKey, k, false)
	if k.Set.rangeBehind() {
		e.key(elemKeyEnd, k, true)
	}
	if whole {
		e.elementData(k, v)
	}
	e.NestEnd(at)
}

func (e *encoder) elementData(k Key, v Value) {
	switch k.Set.Data {
	case DataEndpoint:
		at := e.Nest(elemData)
		n := addressLen(k.Family)
		e.Header(attrDataValue, n+4)
		e.Buf = append(e.Buf, v.To[:n]...)
		e.Buf = binary.BigEndian.AppendUint16(e.Buf, v.Port)
		e.Buf = append(e.Buf, 0, 0)
		e.NestEnd(at)
	case DataAddress:
		e.value(elemData, v.To[:addressLen(k.Family)])
	case DataVerdict:
		at := e.Nest(elemData)
		if v.Body.Verdict == VerdictGoto {
			e.verdictData(codeGoto, v.Body.Goto)
		} else {
			e.verdictData(codeDrop, "")
		}
		e.NestEnd(at)
	}
	if v.Body != nil && v.Body.Counter != nil {
		e.counter(*v.Body.Counter)
	}
	if v.Body != nil && v.Body.Comment != "" {
		var n notes
		n.comment(v.Body.Comment)
		e.Bytes(elemUserdata, n)
	}
}

// key writes a key; with end, that of the last address of an element's range.
func (e *encoder) key(kind uint16, k Key, end bool) {
	at := e.Nest(kind)
	value := len(e.Buf)
	e.Header(attrDataValue, 0)
	e.Buf = k.append(e.Buf, end)
	binary.NativeEndian.PutUint16(e.Buf[value:], uint16(len(e.Buf)-value))
	e.Pad()
	e.NestEnd(at)
}

// append appends the bytes of a key as they are in registers: ports in network byte order,
// slots in host byte order.
func (k Key) append(b []byte, end bool) []byte {
	n := addressLen(k.Family)
	key := k.Set.Key
	for i, f := range key {
		switch f {
		case L4Proto:
			b = append(b, byte(k.Proto))
			if len(key) > 1 {
				b = append(b, 0, 0, 0)
			}
		case Dport, Sport:
			b = binary.BigEndian.AppendUint16(b, k.Port)
			b = append(b, 0, 0)
		case Number:
			b = binary.NativeEndian.AppendUint32(b, uint32(k.Slot))
		default:
			if i == 0 || k.Detail == (Detail{}) {
				b = append(b, k.Addr[:n]...)
			} else {
				b = append(b, k.lastAddr(end).AsSlice()...)
			}
		}
	}
	return b
}

// lastAddr returns the address in the last field of a key with Detail: the first or, with
// end, the last one of a range, or a second address.
func (k Key) lastAddr(end bool) netip.Addr {
	r, ok := k.Range()
	switch {
	case ok && end:
		return r.Last
	case ok:
		return r.First
	}
	return k.second()
}

// rangeElements writes a range of a set whose only field it is: as its first address, and
// the address after its last one, marked as an end. A range up to the last address of
// the family has no end.
func (e *encoder) rangeElements(k Key, whole bool) {
	r, _ := k.Range()
	behind := r.Last.Next()
	at := e.Nest(attrListItem)
	e.key(elemKey, k, false)
	if whole && !behind.IsValid() {
		var n notes
		n.num(noteFlags, noteOpen)
		e.Bytes(elemUserdata, n)
	}
	e.NestEnd(at)
	if !behind.IsValid() {
		return
	}
	at = e.Nest(attrListItem)
	e.Uint32(elemFlags, elemIntervalEnd)
	k.Addr = packed(behind)
	e.key(elemKey, k, false)
	e.NestEnd(at)
}
