// SPDX-License-Identifier: Apache-2.0

package foldertest

import (
	"testing"

	"golang.org/x/sys/windows"
)

// Open lets Everyone write to a file, or to a folder and its future content.
func Open(t *testing.T, path string) {
	t.Helper()
	open, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;BA)(A;OICI;FA;;;WD)")
	if err != nil {
		t.Fatal(err)
	}
	acl, _, err := open.DACL()
	if err != nil {
		t.Fatal(err)
	}
	if err := windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION, nil, nil, acl, nil); err != nil {
		t.Fatal(err)
	}
}
