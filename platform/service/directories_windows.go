package service

import (
	"errors"
	"fmt"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"
)

// access is for the system and administrators alone, and inherited from nobody:
// logs name Services, and whoever can write the state decides what is deleted.
// They are the owners, too: an owner could open it again.
const access = "O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)"

// Paths are where a Windows service keeps what is its own.
type Paths struct {
	Root  string // %ProgramData%\Tandem
	Logs  string
	State string
}

// Directories returns the service's directories, made if need be. The place of
// ProgramData is asked of the system: the environment of a service may name
// another.
func Directories() (Paths, error) {
	data, err := windows.KnownFolderPath(windows.FOLDERID_ProgramData, 0)
	if err != nil {
		return Paths{}, fmt.Errorf("the place of ProgramData: %w", err)
	}
	root := filepath.Join(data, "Tandem")
	p := Paths{Root: root, Logs: filepath.Join(root, "logs"), State: filepath.Join(root, "state")}
	for _, dir := range []string{p.Root, p.Logs, p.State} {
		if err := private(dir); err != nil {
			return Paths{}, fmt.Errorf("directory %s: %w", dir, err)
		}
	}
	return p, nil
}

// private makes a directory that nobody else may open. One that is there is
// closed to others, too: somebody may have made it before us.
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
