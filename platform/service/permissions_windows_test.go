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
	foldertest.Open(t, dir)
	if err := checkPermissions(exe); err == nil || !strings.Contains(err.Error(), "everybody") {
		t.Errorf("open to everybody: %v", err)
	}
}
