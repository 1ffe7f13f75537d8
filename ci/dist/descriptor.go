// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"slices"
)

// Security descriptors of Windows, in the self-relative form of [MS-DTYP] 2.4.6:
//
//	head ─▶ owner, group, and, optionally, a list of access rights
const headSize = 20

// administrators is BUILTIN\Administrators, S-1-5-32-544.
func administrators() []byte { return []byte{1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0} }

// system is NT AUTHORITY\SYSTEM, S-1-5-18.
func system() []byte { return []byte{1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0} }

// ownedBy names an owner and group, without access rights.
func ownedBy(sid []byte) []byte {
	const selfRelative = 0x8000
	return slices.Concat(head(selfRelative, len(sid), 0), sid, sid)
}

// fullAccess grants only the given accounts all rights to a registry key and those in
// it. The last of them owns it.
func fullAccess(sids ...[]byte) []byte {
	const (
		selfRelative, listPresent = 0x8000, 0x0004
		inherited, keyAll         = 0x02, 0xf003f
	)
	var entries []byte
	for _, sid := range sids {
		entries = append(entries, 0, inherited)
		entries = binary.LittleEndian.AppendUint16(entries, uint16(8+len(sid)))
		entries = binary.LittleEndian.AppendUint32(entries, keyAll)
		entries = append(entries, sid...)
	}
	list := []byte{2, 0}
	list = binary.LittleEndian.AppendUint16(list, uint16(8+len(entries)))
	list = binary.LittleEndian.AppendUint16(list, uint16(len(sids)))
	list = append(list, 0, 0)
	owner := sids[len(sids)-1]
	return slices.Concat(head(selfRelative|listPresent, len(owner), headSize+2*len(owner)), owner, owner, list, entries)
}

// head is the fixed part of a descriptor: where the owner, the group of the same
// size and the list are.
func head(control uint16, size, list int) []byte {
	return encode(struct {
		Revision, _                      uint8
		Control                          uint16
		Owner, Group, SystemList, Access uint32
	}{Revision: 1, Control: control, Owner: headSize, Group: uint32(headSize + size), Access: uint32(list)}, nil)
}
