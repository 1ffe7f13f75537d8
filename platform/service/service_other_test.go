// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package service

import (
	"os"
	"path/filepath"
	"testing"
)

// What a failed installation leaves is removed for each service manager, and nothing of the other one.
func TestFailedInstallationLeavesNothing(t *testing.T) {
	root := t.TempDir()
	files := map[string]string{"linux-systemd": "etc/systemd/system/tandem.service", "linux-openrc": "etc/init.d/tandem"}
	for manager, file := range files {
		for _, file := range files {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // it may have left nothing
			if err := removeUnit(root, manager); err != nil {
				t.Errorf("%s: %v", manager, err)
			}
		}
		for other, left := range files {
			if _, err := os.Stat(filepath.Join(root, left)); (err == nil) != (left != file) {
				t.Errorf("%s: of %s: %v", manager, other, err)
			}
		}
	}
}
