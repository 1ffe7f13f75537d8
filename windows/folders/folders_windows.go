// SPDX-License-Identifier: Apache-2.0

package folders

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	acl, _, err := descriptor.DACL()
	if err != nil {
		return err
	}
	owner, _, err := descriptor.Owner()
	if err != nil {
		return err
	}
	return windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT,
		windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, owner, nil, acl, nil)
}

// DeleteUntrusted deletes a file of a closed folder if another program has made it: before the
// folder was closed, to have us trust it. It reports whether there
// was one.
func DeleteUntrusted(file string) (deleted bool, err error) {
	d, err := windows.GetNamedSecurityInfo(file, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("the owner of %s: %w", file, err)
	}
	owner, _, err := d.Owner()
	if err != nil {
		return false, fmt.Errorf("the owner of %s: %w", file, err)
	}
	if trusted, err := trusts(owner); trusted || err != nil {
		return false, err
	}
	return true, os.Remove(file)
}

// trusts reports whether an owner is the system, administrators, or the user that this
// process runs as.
func trusts(owner *windows.SID) (bool, error) {
	if owner == nil { // on a file system that keeps none
		return true, nil
	}
	if owner.IsWellKnown(windows.WinLocalSystemSid) || owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) {
		return true, nil
	}
	self, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return false, err
	}
	return owner.Equals(self.User.Sid), nil
}
