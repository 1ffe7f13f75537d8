// SPDX-License-Identifier: Apache-2.0

package folders

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rights of files and folders (winnt.h).
const (
	writeData   = 0x2 // of a folder: add a file
	appendData  = 0x4 // of a folder: add a folder
	deleteChild = 0x40
	deleteRight = 0x10000
	writeDAC    = 0x40000
	writeOwner  = 0x80000
	genericAll  = 0x10000000
	genericPut  = 0x40000000
)

const (
	// replacing are the rights to a folder that allow replacing a file in it.
	replacing = deleteChild | deleteRight | writeDAC | writeOwner | genericAll
	// writing are those that allow changing a file, or what is in a folder.
	writing = replacing | writeData | appendData | genericPut
)

// trustedInstaller owns the files of Windows.
const trustedInstaller = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"

// privileged are the accounts that control the machine anyway, as SDDL names them: the
// system, administrators, those of the domain and the forest, and who gets the rights of
// the owner, which is judged itself.
var privileged = [...]string{"SY", "BA", "LA", "DA", "EA", "CO", "OW", "S-1-5-18", "S-1-5-32-544", trustedInstaller}

// untrusted names what gives somebody who is not privileged one of the rights to an object
// with a security descriptor, in SDDL; "" for nothing. With no rights it is the owner alone
// that counts. One more SID is trusted. What is
// not understood is an error. An object without an owner is on a file system that keeps none.
func untrusted(sddl string, rights uint32, trusted string) (why string, err error) {
	trusts := func(sid string) bool { return slices.Contains(privileged[:], sid) || sid == trusted }
	owner, rest, err := ownerOf(sddl)
	if err != nil {
		return "", err
	}
	if owner != "" && !trusts(owner) {
		return "owned by " + account(owner), nil
	}
	if rights == 0 {
		return "", nil
	}
	entries, closed, err := entriesOf(rest)
	if err != nil {
		return "", err
	}
	if !closed {
		return "writable by everybody", nil
	}
	for _, e := range entries {
		mask, sid, err := grant(e)
		if err != nil {
			return "", err
		}
		if mask&rights != 0 && !trusts(sid) {
			return "writable by " + account(sid), nil
		}
	}
	return "", nil
}

// ownerOf splits the owner off a security descriptor.
func ownerOf(sddl string) (owner, rest string, err error) {
	rest, ok := strings.CutPrefix(sddl, "O:")
	if !ok {
		return "", sddl, nil
	}
	n := 2 // an alias
	if strings.HasPrefix(rest, "S-") {
		n = 2 + len(rest[2:]) - len(strings.TrimLeft(rest[2:], "0123456789-xXabcdefABCDEF"))
		if n < len(rest) && rest[n] == ':' { // the D of D:, which is a digit, too
			n--
		}
	}
	if n > len(rest) {
		return "", "", fmt.Errorf("security descriptor %q: no owner", sddl)
	}
	return rest[:n], rest[n:], nil
}

// entriesOf returns the entries of the DACL, without their brackets. Without a DACL the
// object is not closed to anybody.
func entriesOf(sddl string) (entries []string, closed bool, err error) {
	_, dacl, ok := strings.Cut(sddl, "D:")
	if !ok || strings.HasPrefix(dacl, "NO_ACCESS_CONTROL") {
		return nil, false, nil
	}
	dacl = strings.TrimLeft(dacl, "PARI") // its flags
	for strings.HasPrefix(dacl, "(") {
		end, depth := 0, 0
		for i, c := range dacl {
			if c == '(' {
				depth++
			} else if c == ')' {
				depth--
			}
			if end = i; depth == 0 {
				break
			}
		}
		if depth != 0 {
			return nil, false, fmt.Errorf("security descriptor: no end of %q", dacl)
		}
		entries, dacl = append(entries, dacl[1:end]), dacl[end+1:]
	}
	if dacl != "" && !strings.HasPrefix(dacl, "S:") {
		return nil, false, fmt.Errorf("security descriptor: %q is no entry", dacl)
	}
	return entries, true, nil
}

// grant returns which rights an entry grants to whom. One that is for new objects in a folder
// alone grants none, nor does one that denies.
func grant(entry string) (mask uint32, sid string, err error) {
	fields := strings.SplitN(entry, ";", 7)
	if len(fields) < 6 {
		return 0, "", fmt.Errorf("security descriptor: entry %q has %d fields", entry, len(fields))
	}
	switch fields[0] {
	case "A", "OA", "XA", "ZA": // allowed; for an object type; on a condition
	case "D", "OD", "XD":
		return 0, "", nil
	default:
		return 0, "", fmt.Errorf("security descriptor: unknown type of entry %q", entry)
	}
	for flags := fields[1]; len(flags) >= 2; flags = flags[2:] {
		if flags[:2] == "IO" {
			return 0, "", nil
		}
	}
	mask, err = rightsOf(fields[2])
	return mask, fields[5], err
}

// rightsOf reads a mask: a number, or words of two letters.
func rightsOf(text string) (mask uint32, err error) {
	if strings.HasPrefix(text, "0") {
		n, err := strconv.ParseUint(text, 0, 32)
		return uint32(n), err
	}
	for ; len(text) >= 2; text = text[2:] {
		bits, known := rightOf(text[:2])
		if !known {
			return 0, fmt.Errorf("security descriptor: unknown rights %q", text)
		}
		mask |= bits
	}
	if text != "" {
		return 0, errors.New("security descriptor: rights of an odd length")
	}
	return mask, nil
}

// rightOf is the meaning of a word (sddl.h).
func rightOf(word string) (bits uint32, known bool) {
	switch word {
	case "GA":
		return genericAll, true
	case "GX":
		return 0x20000000, true
	case "GW":
		return genericPut, true
	case "GR":
		return 0x80000000, true
	case "FA":
		return 0x1f01ff, true
	case "FR":
		return 0x120089, true
	case "FW":
		return 0x120116, true
	case "FX":
		return 0x1200a0, true
	case "RC":
		return 0x20000, true
	case "SD":
		return deleteRight, true
	case "WD":
		return writeDAC, true
	case "WO":
		return writeOwner, true
	}
	if n := slices.Index([]string{"CC", "DC", "LC", "SW", "RP", "WP", "DT", "LO", "CR"}, word); n >= 0 {
		return 1 << n, true
	}
	return 0, false
}

// account names a SID for people.
func account(sid string) string {
	switch sid {
	case "WD", "S-1-1-0":
		return "everybody"
	case "AU", "S-1-5-11":
		return "authenticated users"
	case "BU", "S-1-5-32-545":
		return "users"
	case "IU", "S-1-5-4":
		return "interactive users"
	}
	return sid
}
