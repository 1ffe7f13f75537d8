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
// or put a DLL next to: as a service it would run as the system.
func CheckProgram(exe string) error {
	for _, path := range []string{exe, filepath.Dir(exe)} {
		why, err := judge(path, writing)
		if err != nil {
			return err
		}
		if why != "" {
			return fmt.Errorf("%s is %s, who could run programs as the system: move tandem.exe to %%ProgramFiles%% and install it from there", path, why)
		}
	}
	return nil
}

// CheckInput returns an error for a file that a service reads, or a folder of such files,
// that others than administrators can change, or have made: they would decide what
// the system does.
func CheckInput(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := checkInput(filepath.Dir(path), replacing); err != nil {
		return err
	}
	if err := checkInput(path, writing); err != nil || !info.IsDir() {
		return err
	}
	files, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := checkInput(filepath.Join(path, f.Name()), writing); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func checkInput(path string, rights uint32) error {
	why, err := judge(path, rights)
	if err == nil && why != "" {
		err = fmt.Errorf("%s is %s, who could control this machine through it: if its content is right, give it to administrators and the system by "+
			"icacls \"%[1]s\" /setowner *S-1-5-32-544 and icacls \"%[1]s\" /inheritance:r /grant:r *S-1-5-18:F *S-1-5-32-544:F", path, why)
	}
	return err
}

// judge names who else has rights to a file or a folder; see untrusted.
func judge(path string, rights uint32) (why string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("permissions of %s: %w", path, err)
		}
	}()
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return "", err
	}
	h, err := open(name, windows.READ_CONTROL, 0)
	if err != nil {
		return "", err
	}
	defer windows.CloseHandle(h)
	d, err := windows.GetSecurityInfo(h, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
	if err != nil {
		return "", err
	}
	self, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return "", err
	}
	return untrusted(d.String(), rights, self.User.Sid.String())
}

// DeleteUntrusted deletes a file of a closed folder if another program has made it: before the
// folder was closed, to have us trust it. It reports whether there
// was one.
func DeleteUntrusted(file string) (deleted bool, err error) {
	who, err := judge(file, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if who == "" || err != nil {
		return false, err
	}
	return true, os.Remove(file)
}
