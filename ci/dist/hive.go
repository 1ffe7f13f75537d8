// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"slices"
	"time"
	"unicode/utf16"
)

// hives are the registry files without which Windows does not unpack the lowest
// layer of an image (vmcompute's ProcessBaseLayer); that of a HostProcess image
// is the only one. Up to Windows Server 2022 files of no bytes were enough; since
// 2025 they have to be hives (microsoft/windows-host-process-containers-base-image
// pull request 15).
func hives(when time.Time) (files []file) {
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		files = append(files, file{name: "Files/Windows/System32/config/" + name, mode: 0o644, content: hive(name, when)})
	}
	return files
}

// How a hive of one key is laid out, in bytes from the start of its cells' block
// (github.com/msuhanov/regf describes the format).
const (
	block  = 4096 // of the header, and of all cells
	first  = 32   // where the first cell is, behind the block's own header
	second = first + 88
	none   = 0xffffffff // where a key has no list of something
)

// keyNode is the root key of a hive (cell "nk"), without its name.
type keyNode struct {
	Signature                          [2]byte
	Flags                              uint16 // 4 no deletion, 8 root of a hive, 0x20 the name is not UTF-16
	Written                            uint64
	Access, Parent                     uint32
	Subkeys, VolatileSubkeys           uint32
	SubkeyList, VolatileList           uint32
	Values, ValueList, Security, Class uint32
	Longest                            [5]uint32
	NameLength, ClassLength            uint16
}

// keySecurity is the access rights of keys (cell "sk"), without the descriptor.
type keySecurity struct {
	Signature                  [2]byte
	_                          uint16
	Next, Previous, Keys, Size uint32 // of a ring; it is the only one
}

// hive returns a registry hive, version 1.3, that holds its root key alone, which
// belongs to administrators.
func hive(name string, when time.Time) []byte {
	written := uint64(when.UnixNano()/100) + 116444736000000000 // since 1601
	access := fullAccess(system(), administrators())
	node := encode(keyNode{
		Signature: [2]byte{'n', 'k'}, Flags: 0x2c, Written: written, Parent: none, SubkeyList: none, VolatileList: none,
		ValueList: none, Security: second, Class: none, NameLength: 4,
	}, []byte("ROOT"))
	security := encode(keySecurity{Signature: [2]byte{'s', 'k'}, Next: second, Previous: second, Keys: 1, Size: uint32(len(access))}, access)

	cells := encode(struct {
		Signature [4]byte
		At, Size  uint32
		_         [2]uint32
		Written   uint64
		_         uint32
	}{Signature: [4]byte{'h', 'b', 'i', 'n'}, Size: block, Written: written}, nil)
	cells = append(cells, cell(node)...)
	cells = append(cells, cell(security)...)
	cells = binary.LittleEndian.AppendUint32(cells, uint32(block-len(cells))) // the rest is free
	return slices.Concat(hiveHeader(name, written), cells, make([]byte, block-len(cells)))
}

// hiveHeader returns the first block of a hive.
func hiveHeader(name string, written uint64) []byte {
	var file [32]uint16
	copy(file[:], utf16.Encode([]rune(name)))
	header := encode(struct {
		Signature           [4]byte
		Begun, Ended        uint32 // writes; the same where none was cut short
		Written             uint64
		Major, Minor        uint32
		Kind, Format        uint32
		Root, Size, Cluster uint32
		File                [32]uint16
	}{[4]byte{'r', 'e', 'g', 'f'}, 1, 1, written, 1, 3, 0, 1, first, block, 1, file}, nil)
	header = append(header, make([]byte, block-len(header))...)
	const checksum = 508
	var sum uint32
	for at := 0; at < checksum; at += 4 {
		sum ^= binary.LittleEndian.Uint32(header[at:])
	}
	binary.LittleEndian.PutUint32(header[checksum:], sum)
	return header
}

// cell returns a cell in use: its size, negative, in front, and a multiple of 8.
func cell(content []byte) []byte {
	size := (4 + len(content) + 7) / 8 * 8
	out := binary.LittleEndian.AppendUint32(nil, uint32(-size))
	return append(out, append(content, make([]byte, size-4-len(content))...)...)
}

// encode returns a value of fixed size in its binary form, with more behind it.
func encode(fixed any, more []byte) []byte {
	out, err := binary.Append(nil, binary.LittleEndian, fixed)
	if err != nil {
		panic(err) // not a value of fixed size: a mistake in this file
	}
	return append(out, more...)
}
