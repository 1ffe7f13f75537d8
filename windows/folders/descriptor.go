// SPDX-License-Identifier: Apache-2.0

package folders

import (
	"fmt"
	"slices"
)

// Rights of files and folders (winnt.h).
const (
	writeData    = 0x2 // of a folder: add a file
	appendData   = 0x4 // of a folder: add a folder
	deleteChild  = 0x40
	deleteRight  = 0x10000
	writeDAC     = 0x40000
	writeOwner   = 0x80000
	genericAll   = 0x10000000
	genericWrite = 0x40000000
)

const (
	// replacing are the rights to a folder that allow replacing a file in it.
	replacing = deleteChild | deleteRight | writeDAC | writeOwner | genericAll
	// writing are the rights that allow changing a file, or the content of a folder.
	writing = replacing | writeData | appendData | genericWrite
)

// descriptor is a security descriptor: who owns an object, and who may do what with it.
type descriptor struct {
	owner   string // a SID; empty on a file system that keeps none
	open    bool   // no access list (a NULL DACL): everyone has full access
	entries []entry
}

// entry is an entry of an access list (winnt.h, ACE_HEADER).
type entry struct {
	kind, flags uint8
	mask        uint32
	sid         string
}

// The types of file entries (winnt.h, ACCESS_ALLOWED_ACE_TYPE and others), all with mask and SID
// at the same offsets, and INHERIT_ONLY_ACE, the flag of entries that apply to new objects in
// a folder only.
const (
	allow         = 0
	deny          = 1
	allowCallback = 9 // on a condition
	denyCallback  = 10

	inheritOnly = 0x8
)

// trustedInstaller owns the files of Windows.
const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// privileged are the accounts that control any machine: SYSTEM, Administrators and
// TrustedInstaller; also CREATOR OWNER and OWNER RIGHTS, since the owner itself is judged.
var privileged = [...]string{"S-1-5-18", "S-1-5-32-544", "S-1-3-0", "S-1-3-4", trustedInstaller}

// untrusted describes the owner or entry that gives an unprivileged account one of the rights to an object;
// "" for none. Accounts in trusted count as privileged. With rights 0 only the owner is judged.
// An entry of an unknown type is an error.
func (d descriptor) untrusted(rights uint32, trusted func(sid string) bool) (why string, err error) {
	trusts := func(sid string) bool { return slices.Contains(privileged[:], sid) || trusted(sid) }
	switch {
	case d.owner != "" && !trusts(d.owner):
		return "owned by " + account(d.owner), nil
	case rights == 0:
		return "", nil
	case d.open:
		return "writable by Everyone", nil
	}
	for _, e := range d.entries {
		switch e.kind {
		case allow, allowCallback:
			if e.flags&inheritOnly == 0 && e.mask&rights != 0 && why == "" && !trusts(e.sid) {
				why = "writable by " + account(e.sid)
			}
		case deny, denyCallback:
		default:
			return "", fmt.Errorf("security descriptor: unknown kind of entry %d", e.kind)
		}
	}
	return why, nil
}

// account names a SID for people.
func account(sid string) string {
	switch sid {
	case "S-1-1-0":
		return "Everyone"
	case "S-1-5-11":
		return "authenticated users"
	case "S-1-5-32-545":
		return "users"
	case "S-1-5-4":
		return "interactive users"
	}
	return sid
}
