// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/windows/folders"
	"github.com/tandem-proxy/tandem/windows/folders/foldertest"
)

func TestGuarded(t *testing.T) {
	dir := foldertest.New(t, "tandem.exe")
	exe := filepath.Join(dir, "tandem.exe")
	if err := os.WriteFile(exe, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := folders.Close(dir); err != nil {
		t.Fatal(err)
	}
	if err := checkPermissions(exe); err != nil {
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
	if err := checkPermissions(exe); err == nil || !strings.Contains(err.Error(), "everybody") {
		t.Errorf("open to everybody: %v", err)
	}
}
