package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"
)

// folder makes a folder for a test. t.TempDir is removed by calls that Wine
// lacks.
func folder(t *testing.T, files ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tandem-service-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range append(files, "") {
			if err := os.Remove(filepath.Join(dir, f)); err != nil {
				t.Error(err)
			}
		}
	})
	return dir
}

// Access to the service's folders is that of the system and administrators,
// also to one that somebody has made before.
func TestDirectoriesAreClosed(t *testing.T) {
	root := folder(t, "logs", "new")
	if err := os.Mkdir(filepath.Join(root, "logs"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"logs", "new"} {
		dir := filepath.Join(root, name)
		if err := private(dir); err != nil {
			t.Fatal(err)
		}
		if who, err := writable(dir); who != "" || err != nil {
			t.Errorf("%s may be written by %s (%v)", dir, who, err)
		}
		if windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil {
			t.Log("who may read is not checked: Wine keeps no access lists, but makes them of the modes of files")
			continue
		}
		d, err := windows.GetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.OWNER_SECURITY_INFORMATION|windows.DACL_SECURITY_INFORMATION)
		if err != nil || d.String() != access {
			t.Errorf("%s has %s (%v), want %s", dir, d, err, access)
		}
	}
}

func TestGuarded(t *testing.T) {
	dir := folder(t, "tandem.exe")
	exe := filepath.Join(dir, "tandem.exe")
	if err := os.WriteFile(exe, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := private(dir); err != nil {
		t.Fatal(err)
	}
	if err := guarded(exe); err != nil {
		t.Errorf("closed to others: %v", err)
	}
	open, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;BA)(A;OICI;FA;;;WD)")
	if err != nil {
		t.Fatal(err)
	}
	acl, _, err := open.DACL()
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.SetNamedSecurityInfo(dir, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION, nil, nil, acl, nil); err != nil {
		t.Fatal(err)
	}
	if err := guarded(exe); err == nil || !strings.Contains(err.Error(), "everybody") {
		t.Errorf("open to everybody: %v", err)
	}
}
