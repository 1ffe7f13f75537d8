package nftables

import "github.com/tandem-proxy/tandem/core/model"

// shape is a set's definition as the kernel keeps it. None of it can be changed
// while the set exists.
type shape struct {
	flags, keyType, keyLen, dataType, dataLen, size uint32
}

// Flags of sets.
const (
	setInterval = 0x4
	setMap      = 0x8
	setTimeout  = 0x10
	setEval     = 0x20
	setConcat   = 0x80
)

// dataVerdict is the data type of verdicts (NFT_DATA_VERDICT).
const dataVerdict = 0xffffff00

// nft's numbers for the types of fields; the kernel only keeps them.
const (
	typeInteger = 4
	typeIP      = 7
	typeIP6     = 8
	typeProto   = 12
	typePort    = 13
)

// shapeOf returns the shape of a set of ours.
func shapeOf(f model.Family, s Set) shape {
	key := s.stored(f)
	sh := shape{keyType: keyType(f, key), keyLen: uint32(keyLen(f, key))}
	switch s.data {
	case verdict:
		sh.flags, sh.dataType, sh.dataLen = setMap, dataVerdict, 16
	case endpoint:
		to := []field{daddr, dport}
		sh.flags, sh.dataType, sh.dataLen = setMap, keyType(f, to), uint32(keyLen(f, to))
	case address:
		to := []field{daddr}
		sh.flags, sh.dataType, sh.dataLen = setMap, keyType(f, to), uint32(keyLen(f, to))
	}
	if s.interval {
		sh.flags |= setInterval
		if len(s.key) > 1 {
			sh.flags |= setConcat
		}
	}
	if s.size > 0 {
		sh.flags |= setTimeout | setEval
		sh.size = uint32(s.size)
	}
	return sh
}

// keyType puts the types of the fields together, six bits for each.
func keyType(f model.Family, key []field) (t uint32) {
	ip := uint32(typeIP)
	if f == model.IPv6 {
		ip = typeIP6
	}
	for _, k := range key {
		t = t<<6 | [...]uint32{daddr: ip, saddr: ip, l4proto: typeProto, dport: typePort, sport: typePort, slot: typeInteger}[k]
	}
	return t
}

// fieldLen is the length of a field alone.
func fieldLen(f model.Family, k field) int {
	switch k {
	case l4proto:
		return 1
	case dport, sport:
		return 2
	case slot, hash1, hash2:
		return 4
	}
	return addressLen(f)
}

// keyLen is the length of a key. In a key of several fields each takes a
// multiple of four bytes.
func keyLen(f model.Family, key []field) (n int) {
	if len(key) == 1 {
		return fieldLen(f, key[0])
	}
	for _, k := range key {
		n += (fieldLen(f, k) + 3) &^ 3
	}
	return n
}
