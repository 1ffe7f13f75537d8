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

// reads is what Wine leaves to everybody.
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
			t.Errorf("%s may be written by everybody: %s", dir, d)
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

// What the process itself has made stays, and what is not there is no error. That
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
		t.Errorf("a file of one's own: %v, %v", deleted, err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// Trusted owners of the files that decide what is deleted.
func TestTrusts(t *testing.T) {
	for kind, want := range map[windows.WELL_KNOWN_SID_TYPE]bool{
		windows.WinLocalSystemSid: true, windows.WinBuiltinAdministratorsSid: true,
		windows.WinBuiltinUsersSid: false, windows.WinWorldSid: false, windows.WinAnonymousSid: false,
	} {
		sid, err := windows.CreateWellKnownSid(kind)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := trusts(sid); got != want || err != nil {
			t.Errorf("%s: %v (%v), want %v", sid, got, err, want)
		}
	}
}
