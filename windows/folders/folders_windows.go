// SPDX-License-Identifier: Apache-2.0

package folders

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/windows"
)

// access is for the system and administrators alone, and not inherited:
// logs name Services, and the state decides what is deleted.
// They are the owners, too: an owner could open it again.
const access = "O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// Paths are the folders of Tandem's own files.
type Paths struct {
	Root  string // %ProgramData%\Tandem
	Logs  string
	State string
}

// Find returns the folders, which need not be there. The path of ProgramData is
// asked of the system: the environment of a service may name another.
func Find() (Paths, error) {
	data, err := windows.KnownFolderPath(windows.FOLDERID_ProgramData, 0)
	if err != nil {
		return Paths{}, fmt.Errorf("path of ProgramData: %w", err)
	}
	root := filepath.Join(data, "Tandem")
	return Paths{Root: root, Logs: filepath.Join(root, "logs"), State: filepath.Join(root, "state")}, nil
}

// Make returns the folders, made if need be and closed to others.
func Make() (Paths, error) {
	p, err := Find()
	if err != nil {
		return Paths{}, err
	}
	return p, Close(p.Root, p.Logs, p.State)
}

// Close creates folders that no other user may open, the outer ones first. Those that
// are there are closed to others, too: another user may have made them before.
func Close(dirs ...string) error {
	for _, dir := range dirs {
		if err := private(dir); err != nil {
			return fmt.Errorf("directory %s: %w", dir, err)
		}
	}
	return nil
}

func private(dir string) error {
	descriptor, err := windows.SecurityDescriptorFromString(access)
	if err != nil {
		return err
	}
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return err
	}
	attributes := windows.SecurityAttributes{SecurityDescriptor: descriptor}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	err = windows.CreateDirectory(name, &attributes)
	if !errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		return err
	}
	return closeExisting(name, descriptor)
}

// closeExisting closes a folder that is there. A link to another one is an error: who made
// it would have that one closed, and what is in it trusted.
func closeExisting(name *uint16, descriptor *windows.SECURITY_DESCRIPTOR) error {
	const needed = windows.READ_CONTROL | windows.WRITE_DAC | windows.WRITE_OWNER | windows.FILE_READ_ATTRIBUTES
	h, err := open(name, needed, windows.FILE_FLAG_OPEN_REPARSE_POINT)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(h)
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(h, &info); err != nil {
		return err
	}
	if info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 || info.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY == 0 {
		return errors.New("not a folder, but a link or a file: remove it")
	}
	acl, _, err := descriptor.DACL()
	if err != nil {
		return err
	}
	owner, _, err := descriptor.Owner()
	if err != nil {
		return err
	}
	return windows.SetSecurityInfo(h, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, owner, nil, acl, nil)
}

// open opens a file or a folder. The caller closes it.
func open(name *uint16, access, flags uint32) (windows.Handle, error) {
	const shared = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	return windows.CreateFile(name, access, shared, nil, windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS|flags, 0)
}

// CheckProgram returns an error for a program that others than administrators can replace,
// or put a DLL next to, also by another folder in the place of an outer one: as a service it
// would run as the system. The path has no links.
func CheckProgram(exe string) error {
	dir := filepath.Dir(exe)
	if err := cmp.Or(checkProgram(exe, writing), checkProgram(dir, writing)); err != nil {
		return err
	}
	return outwards(filepath.Dir(dir), checkProgram)
}

// outwards checks a folder and those around it: who can delete or rename one puts another in its
// place.
func outwards(dir string, check func(dir string, rights uint32) error) error {
	for {
		outer, rights := filepath.Dir(dir), uint32(replacing)
		if outer == dir {
			rights &^= deleteRight // the root folder of a disk cannot be deleted or renamed
		}
		if err := check(dir, rights); err != nil || outer == dir {
			return err
		}
		dir = outer
	}
}

func checkProgram(path string, rights uint32) error {
	why, err := judge(path, rights, 0)
	if err != nil || why == "" {
		return err
	}
	return fmt.Errorf("%s is %s, who could run programs as the system: copy tandem.exe to %%ProgramFiles%% as an administrator and install it from there (moved, it keeps its owner and permissions)", path, why)
}

// CheckInput returns an error for a file that a service reads, or a folder of such files,
// that others than administrators can change, or have made: they would decide what
// the system does.
func CheckInput(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := checkPlace(path); err != nil {
		return err
	}
	if !info.IsDir() {
		return checkInput(path, writing, ofFile)
	}
	kind := ofFolder
	if shared(path) {
		kind = ofPlace
	}
	if err := checkInput(path, writing, kind); err != nil {
		return err
	}
	files, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := checkEntry(path, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkEntry checks what is in a folder of files.
func checkEntry(dir string, f fs.DirEntry) error {
	path := filepath.Join(dir, f.Name())
	if f.Type()&fs.ModeSymlink != 0 {
		if err := checkPlace(path); err != nil {
			return err
		}
	}
	if f.IsDir() {
		return checkInput(path, writing, ofFolder)
	}
	return checkInput(path, writing, ofFile)
}

// checkPlace checks the folder in which a file is named and all around it, and, if that is a
// link, also those where it is.
func checkPlace(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for _, dir := range slices.Compact([]string{filepath.Dir(path), filepath.Dir(real)}) {
		if err := outwards(dir, func(dir string, rights uint32) error { return checkInput(dir, rights, ofPlace) }); err != nil {
			return err
		}
	}
	return nil
}

// shared reports whether a folder is not one program's alone: a disk's or a user's.
func shared(dir string) bool {
	full, err := filepath.Abs(dir)
	if err != nil {
		return true
	}
	outer := filepath.Dir(full)
	if outer == full {
		return true
	}
	profiles, err := windows.KnownFolderPath(windows.FOLDERID_UserProfiles, 0)
	return err != nil || strings.EqualFold(outer, profiles)
}

func checkInput(path string, rights uint32, kind fault) error {
	why, err := judge(path, rights, 0)
	if err != nil || why == "" {
		return err
	}
	closed, err := Find()
	if err != nil {
		return err
	}
	if kind == ofPlace && strings.EqualFold(path, closed.Root) {
		kind = ofFolder
	}
	return fmt.Errorf("%s is %s, who could control this machine through it: %s", path, why, kind.advice(path, closed.Root))
}

// judge names who else has rights to a file or a folder; see descriptor.untrusted. The flags are those of
// open. Who asks does not matter: what an administrator's own account owns was made by programs
// that run without an administrator's rights, since with them it is the administrators' (UAC);
// and the service, which is the system, would not accept what an installation by that account
// did.
func judge(path string, rights, flags uint32) (why string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("permissions of %s: %w", path, err)
		}
	}()
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return "", err
	}
	h, err := open(name, windows.READ_CONTROL, flags)
	if err != nil {
		return "", err
	}
	defer windows.CloseHandle(h)
	d, err := windows.GetSecurityInfo(h, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return "", err
	}
	described, err := describe(d)
	if err != nil {
		return "", err
	}
	system, err := ownerOfWindows()
	if err != nil {
		return "", err
	}
	admins := sync.OnceValue(domainAdmins) // few judgements need them
	return described.untrusted(rights, func(sid string) bool { return sid == system || slices.Contains(admins(), sid) })
}

// describe reads a security descriptor. Of an entry of an unknown kind, which is refused, the SID
// is not read: it may be elsewhere.
func describe(d *windows.SECURITY_DESCRIPTOR) (to descriptor, err error) {
	owner, _, err := d.Owner()
	if err != nil {
		return to, err
	}
	if owner != nil {
		to.owner = owner.String()
	}
	acl, _, err := d.DACL()
	if err != nil && !errors.Is(err, windows.ERROR_OBJECT_NOT_FOUND) {
		return to, err
	}
	if err != nil || acl == nil {
		to.open = true
		return to, nil
	}
	for i := range uint32(acl.AceCount) {
		var ace *windows.ACCESS_ALLOWED_ACE
		if err := windows.GetAce(acl, i, &ace); err != nil {
			return to, err
		}
		e := entry{kind: ace.Header.AceType, flags: ace.Header.AceFlags, mask: uint32(ace.Mask)}
		switch e.kind {
		case allow, deny, allowCallback, denyCallback:
			e.sid = (*windows.SID)(unsafe.Pointer(&ace.SidStart)).String()
		}
		to.entries = append(to.entries, e)
	}
	return to, nil
}

// domainAdmins are the SIDs of the machine's administrator, and of the administrators of its
// domain and its forest, if it is in one.
func domainAdmins() (sids []string) {
	for _, alias := range []string{"LA", "DA", "EA"} {
		d, err := windows.SecurityDescriptorFromString("O:" + alias)
		if err != nil {
			continue // it has none
		}
		if owner, _, err := d.Owner(); err == nil && owner != nil {
			sids = append(sids, owner.String())
		}
	}
	return sids
}

// ownerOfWindows returns who owns the folder of Windows, and with it the machine:
// TrustedInstaller, and under Wine its only account.
func ownerOfWindows() (sid string, err error) {
	dir, err := windows.GetSystemWindowsDirectory()
	if err != nil {
		return "", err
	}
	d, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return "", err
	}
	owner, _, err := d.Owner()
	if err != nil {
		return "", err
	}
	return owner.String(), nil
}

// DeleteUntrusted deletes a file of a closed folder if another user has made it: before the
// folder was closed, to have us trust it, or to read what we write. Of a link the maker of the
// link counts, wherever that leads. It reports whether there was one.
func DeleteUntrusted(file string) (deleted bool, err error) {
	who, err := judge(file, 0, windows.FILE_FLAG_OPEN_REPARSE_POINT)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if who == "" || err != nil {
		return false, err
	}
	return true, os.Remove(file)
}
