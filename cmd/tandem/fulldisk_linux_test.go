// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
)

// A full disk does not destroy the existing configuration.
func TestConfigurationOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("last good"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", path+".new"); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	if err := writeConfig(path, &c); err == nil {
		t.Error("a full disk is no error")
	}
	if text, err := os.ReadFile(path); string(text) != "last good" {
		t.Errorf("the file has %q (%v)", text, err)
	}
	if err := os.Remove(path + ".new"); err == nil {
		t.Error("the incomplete file is still there")
	}
	if err := writeConfig(path, &c); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); len(text) < 100 {
		t.Errorf("the file has %q (%v)", text, err)
	}
	if err := writeConfig("/dev/full", &c); err == nil {
		t.Error("a full device is no error")
	}
	if err := writeConfig("/dev/null", &c); err != nil {
		t.Error(err)
	}
	if s, err := os.Stat("/dev/null"); err != nil || s.Mode().IsRegular() {
		t.Fatalf("a device was replaced by a file: %v, %v", s, err)
	}
}
