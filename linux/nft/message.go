// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Messages of nf_tables (include/uapi/linux/netfilter/nf_tables.h) and of batches
// (nfnetlink.h). They are copied here so that the package compiles on any system.
const (
	msgNewTable = iota
	msgGetTable
	msgDelTable
	msgNewChain
	msgGetChain
	msgDelChain
	msgNewRule
	msgGetRule
	msgDelRule
	msgNewSet
	msgGetSet
	msgDelSet
	msgNewSetElem
	msgGetSetElem
	msgDelSetElem
	msgNewGen
	msgGetGen

	subsystem  = 10 // NFNL_SUBSYS_NFTABLES
	batchBegin = 0x10
	batchEnd   = 0x11
)

// Attributes of tables, chains, rules, sets and lists of elements (enum
// nft_table_attributes and its siblings).
const (
	attrTable = 1 // name of the table, in all of them

	attrTableFlags    = 2
	attrTableUserdata = 6

	tableOwner = 2 // NFT_TABLE_F_OWNER in attrTableFlags: the kernel deletes the table with the socket that created it

	attrChainName   = 3
	attrChainHook   = 4
	attrChainPolicy = 5
	attrChainType   = 7
	attrChainFlags  = 10

	attrHookPoint    = 1 // in attrChainHook
	attrHookPriority = 2

	attrRuleChain       = 2
	attrRuleExpressions = 4
	attrRuleUserdata    = 7

	attrSetName     = 2
	attrSetFlags    = 3
	attrSetKeyType  = 4
	attrSetKeyLen   = 5
	attrSetDataType = 6
	attrSetDataLen  = 7
	attrSetDesc     = 9
	attrSetID       = 10
	attrSetUserdata = 13
	attrSetCount    = 20 // since Linux 6.17

	attrDescSize   = 1 // in attrSetDesc
	attrDescConcat = 2
	attrFieldLen   = 1 // in an element of attrDescConcat
	attrListItem   = 1 // NFTA_LIST_ELEM

	attrElementsSet  = 2
	attrElementsList = 3

	attrExprName = 1 // NFTA_EXPR_NAME
	attrExprData = 2 // NFTA_EXPR_DATA

	attrDataValue    = 1 // of a constant, or of an element's data
	attrDataVerdict  = 2 // NFTA_DATA_VERDICT
	attrVerdictCode  = 1 // in attrDataVerdict
	attrVerdictChain = 2
)

// Attributes of elements, and of expressions (enum nft_set_elem_attributes and others). The kernel's
// NFTA_PAYLOAD_DREG is payloadDreg here.
const (
	elemKey = iota + 1
	elemData
	elemFlags
	elemTimeout
	elemExpiration
	elemUserdata
	elemExpr
	elemPad
	elemObjref
	elemKeyEnd

	elemIntervalEnd = 1 // NFT_SET_ELEM_INTERVAL_END, in elemFlags
)

const (
	payloadDreg = iota + 1
	payloadBase
	payloadOffset
	payloadLen
	payloadSreg
	payloadCsumType
	payloadCsumOffset
	payloadCsumFlags
)

const (
	metaDreg = iota + 1
	metaKey
	metaSreg
)

const (
	ctDreg = iota + 1
	ctKey
	ctDirection
)

const (
	cmpSreg = iota + 1
	cmpOp
	cmpData
)

const (
	bitwiseSreg = iota + 1
	bitwiseDreg
	bitwiseLen
	bitwiseMask
	bitwiseXor
)

const (
	immediateDreg = iota + 1
	immediateData
)

const (
	lookupSet = iota + 1
	lookupSreg
	lookupDreg
	lookupSetID
	lookupFlags
)

const (
	dynsetSetName = iota + 1
	dynsetSetID
	dynsetOp
	dynsetSregKey
	dynsetSregData
	dynsetTimeout
	dynsetExpr
)

const (
	hashSreg = iota + 1
	hashDreg
	hashLen
	hashModulus
	hashSeed
	hashOffset
	hashType
)

const (
	ngDreg = iota + 1
	ngModulus
	ngType
	ngOffset
)

const (
	fibDreg = iota + 1
	fibResult
	fibFlags
)

const (
	natType = iota + 1
	natFamily
	natRegAddrMin
	natRegAddrMax
	natRegProtoMin
	natRegProtoMax
	natFlags
)

const (
	limitRate = iota + 1
	limitUnit
	limitBurst
	limitType
	limitFlags
)

const (
	rejectType = iota + 1
	rejectICMPCode
)

const (
	counterBytes = iota + 1
	counterPackets
)

const (
	rangeSreg = iota + 1
	rangeOp
	rangeFromData
	rangeToData
)

// Attributes of iptables' matches (NFTA_MATCH_NAME, NFTA_MATCH_INFO); targets have the same numbers.
const (
	matchName = 1
	matchInfo = 3
)

const (
	masqFlags        = 1
	offloadTableName = 1 // NFTA_FLOW_TABLE_NAME
)

// Values of these attributes. The kernel's NFT_CT_STATE is ctKeyState here.
const (
	dirOriginal = 0 // IP_CT_DIR_ORIGINAL, of ctDirection

	ctKeyState    = 0 // enum nft_ct_keys
	ctKeyStatus   = 2
	ctKeyMark     = 3
	ctKeyProtocol = 10
	ctKeySrcIP    = 19
	ctKeyDstIP    = 20
	ctKeySrcIP6   = 21
	ctKeyDstIP6   = 22
	ctKeyID       = 23

	statusDNAT = 1 << 5 // IPS_DST_NAT, of ctKeyStatus

	lookupInverse = 1 // NFT_LOOKUP_F_INV
	limitInverse  = 1 // NFT_LIMIT_F_INV
	limitPackets  = 0 // NFT_LIMIT_PKTS

	dynsetAdd    = 0 // enum nft_dynset_ops
	dynsetUpdate = 1
	dynsetDelete = 2

	ngIncremental = 0 // enum nft_ng_types
	ngRandom      = 1

	hashJenkins = 0 // NFT_HASH_JENKINS

	fibAddrType  = 3 // NFT_FIB_RESULT_ADDRTYPE
	fibDaddrFlag = 2 // NFTA_FIB_F_DADDR
	routeLocal   = 2 // RTN_LOCAL, a result of fibAddrType

	natSNAT = 0 // enum nft_nat_types
	natDNAT = 1

	natSpecified   = 1 << 1 // NF_NAT_RANGE_PROTO_SPECIFIED, of natFlags
	natRandomFully = 1 << 4 // NF_NAT_RANGE_PROTO_RANDOM_FULLY, of masqFlags

	rejectUnreachable = 0 // NFT_REJECT_ICMP_UNREACH

	csumInet   = 1 // NFT_PAYLOAD_CSUM_INET
	csumPseudo = 1 // NFT_PAYLOAD_L4CSUM_PSEUDOHDR

	chainBinding = 4 // NFT_CHAIN_BINDING: an anonymous chain, which is part of a rule
	setAnonymous = 1 // NFT_SET_ANONYMOUS: a set that is part of a rule
)

// Offsets in headers, in bytes, and values of fields.
const (
	offsetSport    = 0
	offsetDport    = 2
	offsetTCPFlags = 13

	offsetIPProtocol = 9
	offsetIPChecksum = 10
	offsetIPSaddr    = 12
	offsetIPDaddr    = 16
	offsetIP6Saddr   = 8
	offsetIP6Daddr   = 24

	tcpSYN = 0x02
	tcpACK = 0x10

	icmpPortUnreach   = 3 // ICMP_PORT_UNREACH
	icmpv6PortUnreach = 4 // ICMPV6_PORT_UNREACH
)

// messageOf returns a message's type within nf_tables, or -1.
func messageOf(m netlink.Message) int {
	if m.Type>>8 != subsystem {
		return -1
	}
	return int(m.Type & 0xff)
}

// Tables, sets, rules and elements carry user data that the kernel keeps and does not
// interpret. nft stores notes there as type, length, value. Tandem does the same, so that
// nft lists comments and types.
const (
	noteComment = 0 // of tables, rules and elements
	noteFlags   = 1 // of elements
	noteOpen    = 1 // in noteFlags: a range with no end

	// Tandem's own, which nft skips: the digest of a rule, and the rest of a comment that is
	// too long for nft.
	noteDigest = 0x74
	noteRest   = 0x75

	// Of sets: their types ("typeof").
	noteKeyOrder     = 0
	noteDataOrder    = 1
	noteKeyTypeof    = 3
	noteDataTypeof   = 4
	noteDataInterval = 6
)

// notes appends type, length, value.
type notes []byte

func (n *notes) add(kind byte, value []byte) {
	*n = append(append(*n, kind, byte(len(value))), value...)
}

func (n *notes) num(kind byte, v uint32) {
	n.add(kind, binary.NativeEndian.AppendUint32(nil, v))
}

// maxComment is the length of the longest comment in bytes: the kernel keeps 256 bytes of notes.
const maxComment = 251

func (n *notes) comment(s string) {
	if s == "" {
		return
	}
	start := CommentText(s)
	n.add(noteComment, append([]byte(start), 0))
	if rest := printable(s); len(rest) > len(start) {
		n.add(noteRest, []byte(rest[len(start):min(len(rest), maxComment)]))
	}
}

// comment reads a comment that notes.comment wrote.
func comment(notes []byte) string {
	return netlink.Text(note(notes, noteComment)) + string(note(notes, noteRest))
}

// note returns the value of a note; nil if there is none.
func note(b []byte, kind byte) []byte {
	for len(b) >= 2 {
		size := int(b[1])
		if len(b) < 2+size {
			return nil
		}
		if b[0] == kind {
			return b[2 : 2+size]
		}
		b = b[2+size:]
	}
	return nil
}

// ruleNotes are the notes of a rule.
func (t *Table) ruleNotes(f model.Family, r Rule) []byte {
	var n notes
	n.comment(r.Comment)
	n.add(noteDigest, binary.BigEndian.AppendUint64(nil, t.digest(f, r)))
	return n
}

// ruleDigest reads the digest of a rule; 0 for a rule that Tandem did not write.
func ruleDigest(b []byte) uint64 {
	if d := note(b, noteDigest); len(d) == 8 {
		return binary.BigEndian.Uint64(d)
	}
	return 0
}

// nft's numbers of expressions and protocols (enum expr_types, enum proto_desc_id). They are
// part of stored notes and therefore stable.
const (
	exprVerdict = 1
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	protoTransport = 11
	protoIP        = 12
	protoIP6       = 13
)

// setNotes describe the types of a set.
func setNotes(f model.Family, s *Set) []byte {
	var n notes
	key := s.stored(f)
	n.num(noteKeyOrder, byteOrder(key))
	if s.Data != NoData {
		n.num(noteDataOrder, 0)
	}
	n.add(noteKeyTypeof, typeofKey(f, key))
	switch s.Data {
	case DataVerdict:
		n.add(noteDataTypeof, typeof(exprVerdict, nil))
	case DataEndpoint:
		n.add(noteDataTypeof, typeofKey(f, endpointFields))
	case DataAddress:
		n.add(noteDataTypeof, typeofKey(f, addressFields))
	}
	if s.Data != NoData {
		n.num(noteDataInterval, 0)
	}
	return n
}

// byteOrder returns nft's number of a key's byte order: 1 for the host's, 2 for the
// network's, 0 for several fields.
func byteOrder(key []Field) uint32 {
	switch {
	case len(key) > 1:
		return 0
	case key[0] == L4Proto:
		return 1
	}
	return 2
}

func typeof(expr uint32, details []byte) []byte {
	var n notes
	n.num(0, expr)
	n.add(1, details)
	return n
}

func typeofKey(f model.Family, key []Field) []byte {
	if len(key) == 1 {
		return typeofField(f, key[0])
	}
	var parts notes
	for i, k := range key {
		parts.add(byte(i), typeofField(f, k))
	}
	return typeof(exprConcat, parts)
}

func typeofField(f model.Family, k Field) []byte {
	var n notes
	switch k {
	case L4Proto:
		n.num(0, metaL4Proto)
		return typeof(exprMeta, n)
	case Number: // numgen random mod 65536
		n.num(0, 1)
		n.num(1, 65536)
		n.num(2, 0)
		return typeof(exprNumgen, n)
	case Dport:
		n.num(0, protoTransport)
		n.num(1, 2)
	case Sport:
		n.num(0, protoTransport)
		n.num(1, 1)
	default:
		ip := map[Field]uint32{Saddr: 11, Daddr: 12}
		proto := uint32(protoIP)
		if f == model.IPv6 {
			ip, proto = map[Field]uint32{Saddr: 8, Daddr: 9}, protoIP6
		}
		n.num(0, proto)
		n.num(1, ip[k])
	}
	return typeof(exprPayload, n)
}
