// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/folders"
	"github.com/tandem-proxy/tandem/windows/folders/foldertest"
)

func TestGuarded(t *testing.T) {
	outer := foldertest.New(t, "bin/tandem.exe", "bin")
	dir := filepath.Join(outer, "bin")
	exe := filepath.Join(dir, "tandem.exe")
	if err := folders.Close(outer, dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkPermissions(exe); err != nil {
		t.Errorf("closed to others: %v", err)
	}
	for _, path := range []string{outer, dir} { // of the outer one they could put another in its place
		foldertest.Open(t, path)
		if err := checkPermissions(exe); err == nil || !strings.Contains(err.Error(), path+" is writable by Everyone") {
			t.Errorf("%s is open to Everyone: %v", path, err)
		}
		if err := folders.Close(path); err != nil {
			t.Fatal(err)
		}
	}
}
