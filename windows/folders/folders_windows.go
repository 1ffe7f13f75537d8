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

// access (SDDL) allows the system and administrators only, and is not inherited: logs name
// Services, and the state decides what is deleted. Administrators own the folders,
// since an owner can change the permissions.
const access = "O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// Paths are the folders of Tandem's own files.
type Paths struct {
	Root  string // %ProgramData%\Tandem
	Logs  string
	State string
}

// Find returns the folders, which need not exist. ProgramData is the system's, not the
// environment's, which may name another for a service.
func Find() (Paths, error) {
	data, err := windows.KnownFolderPath(windows.FOLDERID_ProgramData, 0)
	if err != nil {
		return Paths{}, fmt.Errorf("path of ProgramData: %w", err)
	}
	root := filepath.Join(data, "Tandem")
	return Paths{Root: root, Logs: filepath.Join(root, "logs"), State: filepath.Join(root, "state")}, nil
}

// Make returns the folders, created if necessary and closed (Close).
func Make() (Paths, error) {
	p, err := Find()
	if err != nil {
		return Paths{}, err
	}
	return p, Close(p.Root, p.Logs, p.State)
}

// Close creates folders that only the system and administrators may open, in the given
// order. Existing folders get the same owner and permissions: another user may have
// created them.
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

// closeExisting closes an existing folder. A link is an error: its creator would have the
// folder that it leads to closed, and its content trusted.
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
		return errors.New("a link or a file instead of a folder: remove it")
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

// CheckProgram returns an error for a program that unprivileged users can replace, or put
// a DLL next to, also by replacing an outer folder: as a service it would run as the
// system. The path must have no links.
func CheckProgram(exe string) error {
	dir := filepath.Dir(exe)
	if err := cmp.Or(checkProgram(exe, writing), checkProgram(dir, writing)); err != nil {
		return err
	}
	return outwards(filepath.Dir(dir), checkProgram)
}

// outwards checks a folder and all around it for the rights to delete, rename or replace it.
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
// that unprivileged users own or can change: they would control what a service of the
// system does.
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

// checkEntry checks an entry of a folder whose files are read.
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

// checkPlace checks the folder of a path and all around it, and, if the path is a link, also
// those of its target.
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

// shared reports whether a folder is a disk's root or a user's profile, which other programs
// use.
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

// judge describes which unprivileged account has one of the rights to a file or a folder
// (descriptor.untrusted). The flags are those of open. The caller's own account is not trusted, even if it
// is an administrator's: what it owns was made by programs without elevation (UAC), since
// with it Administrators own what is made. The service would reject such files later.
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

// describe reads a security descriptor. The SID of an entry of unknown type is not read: its
// offset is unknown, and untrusted rejects the entry.
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

// domainAdmins returns the SIDs of the machine's administrator and, in a domain, of Domain
// Admins and Enterprise Admins.
func domainAdmins() (sids []string) {
	for _, alias := range []string{"LA", "DA", "EA"} {
		d, err := windows.SecurityDescriptorFromString("O:" + alias)
		if err != nil {
			continue // not in a domain
		}
		if owner, _, err := d.Owner(); err == nil && owner != nil {
			sids = append(sids, owner.String())
		}
	}
	return sids
}

// ownerOfWindows returns the owner of the Windows folder, who controls the machine:
// TrustedInstaller, or under Wine its only account.
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

// DeleteUntrusted deletes a file in a closed folder if an unprivileged user owns it, who may have made it
// before the folder was closed, and could read and change what Tandem writes. Of a link its own owner
// counts, not its target's. It reports whether it deleted the file.
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
