package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/windows/folders"
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

func TestGuarded(t *testing.T) {
	dir := folder(t, "tandem.exe")
	exe := filepath.Join(dir, "tandem.exe")
	if err := os.WriteFile(exe, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := folders.Close(dir); err != nil {
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
