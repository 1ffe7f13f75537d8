// SPDX-License-Identifier: Apache-2.0

// Package foldertest makes folders for tests that run on Windows and under Wine.
package foldertest

import (
	"os"
	"path/filepath"
	"testing"
)

// New creates a folder for a test, and removes it afterwards with these files, all of which the
// test must have created: t.TempDir uses calls that Wine lacks.
func New(t *testing.T, files ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tandem-folder-")
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
