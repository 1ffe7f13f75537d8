// SPDX-License-Identifier: Apache-2.0

package folders

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/windows/folders/foldertest"
)

// reads is what Wine leaves to Everyone.
const reads = "(A;OICI;0x1200a9;;;WD)"

// Access to the folders is that of the system and administrators, also to one
// that another user has made before.
func TestFoldersAreClosed(t *testing.T) {
	root := foldertest.New(t, "logs", "new")
	old, made := filepath.Join(root, "logs"), filepath.Join(root, "new")
	if err := os.Mkdir(old, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := Close(old, made); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{old, made} {
		d, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
		if err != nil {
			t.Fatal(err)
		}
		if others := strings.ReplaceAll(d.String(), reads, ""); strings.Contains(others, ";;;WD)") {
			t.Errorf("%s may be written by Everyone: %s", dir, d)
		}
		if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
			t.Log("who may read is not checked: Wine keeps no access lists, but makes them of the modes of files")
			continue
		}
		if d.String() != access {
			t.Errorf("%s has %s, want %s", dir, d, access)
		}
	}
}

// A folder in a folder that is not there is an error that names it.
func TestAFolderThatCannotBeClosed(t *testing.T) {
	dir := filepath.Join(foldertest.New(t), "missing", "state")
	if err := Close(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// What administrators have made stays, and what is not there is no error. That
// others' files go is shown by ci/wine.
func TestOwnFilesStay(t *testing.T) {
	file := filepath.Join(foldertest.New(t, "journal"), "journal")
	if deleted, err := DeleteUntrusted(file); deleted || err != nil {
		t.Errorf("no file: %v, %v", deleted, err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if deleted, err := DeleteUntrusted(file); deleted || err != nil {
		t.Errorf("a file of administrators: %v, %v", deleted, err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// What administrators have made is trusted, and what Everyone may write is not.
func TestCheckInput(t *testing.T) {
	dir := foldertest.New(t, "config.yaml")
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Close(dir); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, file} {
		if err := CheckInput(path); err != nil {
			t.Errorf("closed to others: %v", err)
		}
	}
	foldertest.Open(t, file)
	for _, path := range []string{dir, file} {
		if err := CheckInput(path); err == nil || !strings.Contains(err.Error(), "writable by Everyone") {
			t.Errorf("%s with a file that is open to Everyone: %v", path, err)
		}
	}
	if err := CheckInput(file); err == nil || strings.Contains(err.Error(), "(OI)") {
		t.Errorf("advice for a file: %v", err)
	}
	for dir, want := range map[string]bool{`C:\`: true, `C:\k`: false, dir: false} {
		if shared(dir) != want {
			t.Errorf("%s is shared: %t", dir, !want)
		}
	}
	if err := CheckInput(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// The folder in which a link's target is counts as the one in which the link is.
func TestALinkIsJudgedWhereItLeads(t *testing.T) {
	dir := foldertest.New(t, "open/config.yaml", "open", "closed/link", "closed")
	where, closed := filepath.Join(dir, "open"), filepath.Join(dir, "closed")
	file, link := filepath.Join(where, "config.yaml"), filepath.Join(closed, "link")
	if err := Close(where, closed); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := os.Symlink(file, link)
	if _, missing := os.Lstat(link); err != nil || missing != nil { // Wine makes none, and returns no error
		if err := os.WriteFile(link, nil, 0o600); err != nil { // which is removed at the end
			t.Fatal(err)
		}
		t.Skipf("no links are made here: %v, %v", err, missing)
	}
	if err := CheckInput(link); err != nil {
		t.Errorf("closed to others: %v", err)
	}
	foldertest.Open(t, where)
	if err := CheckInput(link); err == nil || !strings.Contains(err.Error(), where+" is writable by Everyone") || strings.Contains(err.Error(), "icacls") {
		t.Errorf("a link into a folder that is open to Everyone: %v", err)
	}
}

// A file in the place of a folder is not closed and used.
func TestAFileIsNoFolder(t *testing.T) {
	file := filepath.Join(foldertest.New(t, "logs"), "logs")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Close(file); err == nil || !strings.Contains(err.Error(), "instead of a folder") {
		t.Errorf("%v", err)
	}
}

// A folder around a folder that others can replace decides what is in it, as for a program.
func TestFoldersAroundAnInputCount(t *testing.T) {
	dir := foldertest.New(t, "outer/inner/config.yaml", "outer/inner", "outer")
	outer, inner := filepath.Join(dir, "outer"), filepath.Join(dir, "outer", "inner")
	file := filepath.Join(inner, "config.yaml")
	if err := Close(outer, inner); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckInput(file); err != nil {
		t.Errorf("closed to others: %v", err)
	}
	foldertest.Open(t, outer)
	for _, path := range []string{file, inner} {
		if err := CheckInput(path); err == nil || !strings.Contains(err.Error(), outer+" is writable by Everyone") {
			t.Errorf("%s in a folder that is open to Everyone: %v", path, err)
		}
	}
}

// A descriptor of Windows is read as what it says.
func TestDescriptorsOfWindowsAreRead(t *testing.T) {
	for sddl, want := range map[string]string{
		access: "",
		"O:BAD:(A;OICI;FA;;;BA)(A;OICIIO;FA;;;WD)":        "",
		"O:BAD:(D;;FA;;;WD)(A;;0x1200a9;;;BU)":            "",
		"O:SYD:(A;;FA;;;SY)(A;OICI;0x116;;;BU)":           "writable by users",
		"O:SYD:P(A;;FA;;;BA)(A;;0x1301bf;;;WD)":           "writable by Everyone",
		"O:S-1-5-21-1-2-3-1001D:(A;;FA;;;SY)(A;;FA;;;BA)": "owned by S-1-5-21-1-2-3-1001",
		"O:BA":           "writable by Everyone",
		"D:(A;;FA;;;BA)": "",
	} {
		d, err := windows.SecurityDescriptorFromString(sddl)
		if err != nil {
			t.Fatal(sddl, err)
		}
		got, err := describe(d)
		if err != nil {
			t.Fatal(sddl, err)
		}
		if why, err := got.untrusted(writing, func(string) bool { return false }); why != want || err != nil {
			t.Errorf("%s: %q (%v), want %q", sddl, why, err, want)
		}
	}
}
