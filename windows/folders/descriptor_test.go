// SPDX-License-Identifier: Apache-2.0

package folders

import (
	"slices"
	"strings"
	"testing"
)

// Descriptors as Windows makes them, and who could change the object.
func TestUntrusted(t *testing.T) {
	const (
		user, ofWindows                      = "S-1-5-21-1-2-3-1001", "S-1-5-21-9-9-9-1000"
		system, admins, creator              = "S-1-5-18", "S-1-5-32-544", "S-1-3-0"
		everybody, users, loggedIn, atScreen = "S-1-1-0", "S-1-5-32-545", "S-1-5-11", "S-1-5-4"

		full, read, change, add          = 0x1f01ff, 0x1200a9, 0x1301bf, 0x116 // add: files and folders
		objectInherit, containerInherit  = 1, 2
		inherited, inherit, readOf, runs = 0x10, 3, 0x80000000, 0x20000000
	)
	may := func(sid string, mask uint32, flags uint8) entry { return entry{allow, flags, mask, sid} }
	closed := []entry{may(system, full, inherit), may(admins, full, inherit)}
	inProgramData := append(slices.Clone(closed), may(creator, genericAll, inherit|inheritOnly), may(users, read, inherit), may(users, add, containerInherit|inherited))
	for _, c := range []struct {
		name    string
		owner   string
		entries []entry // nil for no access list
		rights  uint32
		want    string
	}{
		{"the folder as it is closed", admins, closed, writing, ""},
		{"a new folder in ProgramData", admins, inProgramData, writing, "writable by users"},
		{"in which files cannot be replaced", admins, inProgramData, replacing, ""},
		{"a file of an administrator in it", admins, append(slices.Clone(closed), may(users, read, inherited)), writing, ""},
		{"a file that a user has planted", user, closed, writing, "owned by " + user},
		{"copied into a user's folder", admins, []entry{may(admins, full, inherited), may(user, full, inherited)}, writing, "writable by " + user},
		{"in the root of a workstation's disk", admins, []entry{may(admins, full, inherited), may(loggedIn, change, inherited), may(users, read, inherited)}, writing, "writable by authenticated users"},
		{
			"a disk for data, whose own folder nobody renames", admins,
			append(slices.Clone(closed), may(loggedIn, change, 0), may(loggedIn, change, inherit|inheritOnly)), replacing &^ deleteRight, "",
		},
		{"a folder in it, which others may rename", admins, append(slices.Clone(closed), may(loggedIn, change, inherit|inherited)), replacing, "writable by authenticated users"},
		{"of Windows", trustedInstaller, []entry{may(trustedInstaller, full, 0), may(users, read, 0)}, writing, ""},
		{"no access list", admins, nil, writing, "writable by Everyone"},
		{"an empty access list", system, []entry{}, writing, ""},
		{"only new files are writable", system, []entry{may(everybody, full, objectInherit|containerInherit|inheritOnly)}, writing, ""},
		{"denied", system, []entry{{deny, 0, full, everybody}, {denyCallback, 0, full, users}, may(system, full, 0)}, writing, ""},
		{"permissions can be changed", system, []entry{may(users, writeDAC, 0)}, replacing, "writable by users"},
		{"taken over", system, []entry{may(atScreen, writeOwner, 0)}, replacing, "writable by interactive users"},
		{"all generic rights", system, []entry{may(everybody, genericAll, 0)}, replacing, "writable by Everyone"},
		{"generic writing", system, []entry{may(everybody, genericWrite, 0)}, writing, "writable by Everyone"},
		{"reading", system, []entry{may(everybody, readOf|runs, 0), may(loggedIn, read, 0)}, writing, ""},
		{"on a condition", system, []entry{{allowCallback, 0, add, users}, may(system, full, 0)}, writing, "writable by users"},
		{"no owner: the file system keeps none", "", []entry{may(admins, full, 0)}, writing, ""},
		{"the owner alone", system, nil, 0, ""},
		{"another owner", user, closed, 0, "owned by " + user},
		{"the owner of Windows", ofWindows, []entry{may(ofWindows, full, 0)}, writing, ""},
	} {
		d := descriptor{owner: c.owner, open: c.entries == nil, entries: c.entries}
		got, err := d.untrusted(c.rights, func(sid string) bool { return sid == ofWindows })
		if err != nil || got != c.want {
			t.Errorf("%s: %q (%v), want %q", c.name, got, err, c.want)
		}
	}
}

// What is not understood is no permission, wherever it is in the list.
func TestDescriptorsThatAreNotUnderstood(t *testing.T) {
	known := entry{allow, 0, writeData, "S-1-1-0"}
	for _, kind := range []uint8{2, 4, 5, 11, 13, 255} {
		for _, list := range [][]entry{{{kind: kind}}, {known, {kind: kind}}, {{kind: kind}, known}} {
			why, err := descriptor{owner: "S-1-5-18", entries: list}.untrusted(writing, func(string) bool { return false })
			if err == nil || !strings.Contains(err.Error(), "security descriptor") {
				t.Errorf("%v: %q, %v", list, why, err)
			}
		}
	}
}
