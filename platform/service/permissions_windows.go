// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

const fileDeleteChild = 0x40 // FILE_DELETE_CHILD of winnt.h

// writing are the rights that allow replacing a file in a folder.
const writing = windows.FILE_WRITE_DATA | windows.FILE_APPEND_DATA | fileDeleteChild |
	windows.DELETE | windows.WRITE_DAC | windows.WRITE_OWNER | windows.GENERIC_WRITE | windows.GENERIC_ALL

// checkPermissions returns an error for a program that ordinary users can replace, or
// put a DLL next to: as a service it would run as the system.
func checkPermissions(exe string) error {
	for _, path := range []string{exe, filepath.Dir(exe)} {
		who, err := writable(path)
		if err != nil {
			return fmt.Errorf("permissions of %s: %w", path, err)
		}
		if who != "" {
			return fmt.Errorf("%s is writable by %s, who could run programs as the system: move tandem.exe to %%ProgramFiles%% and install it from there", path, who)
		}
	}
	return nil
}

// writable names a group of ordinary users that may write to a file or folder.
func writable(path string) (who string, err error) {
	d, err := windows.GetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return "", err
	}
	acl, _, err := d.DACL()
	if err != nil {
		return "", err
	}
	if acl == nil {
		return "everybody", nil
	}
	for i := range uint32(acl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(acl, i, &ace); err != nil {
			return "", err
		}
		inherited := ace.Header.AceFlags&windows.INHERIT_ONLY_ACE != 0 // by new files in it
		if ace.Header.AceType != windows.ACCESS_ALLOWED_ACE_TYPE || inherited || ace.Mask&writing == 0 {
			continue
		}
		if name, ok := ordinary((*windows.SID)(unsafe.Pointer(&ace.SidStart))); ok {
			return name, nil
		}
	}
	return "", nil
}

// ordinary names a group with members that are not administrators.
func ordinary(sid *windows.SID) (name string, ok bool) {
	for kind, name := range map[windows.WELL_KNOWN_SID_TYPE]string{
		windows.WinWorldSid:             "everybody",
		windows.WinAuthenticatedUserSid: "authenticated users",
		windows.WinBuiltinUsersSid:      "users",
		windows.WinInteractiveSid:       "interactive users",
	} {
		if sid.IsWellKnown(kind) {
			return name, true
		}
	}
	return "", false
}
