// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Package managers are told where the files of the release will be, and their checksums.
func TestManagers(t *testing.T) {
	r := release{root: "../..", out: t.TempDir(), version: "1.2.3", commit: "c0ffee", when: time.Unix(1_800_000_000, 0).UTC(), targets: all()}
	for _, name := range []string{"amd64.msi", "amd64.zip", "arm64.msi", "arm64.zip"} {
		path := filepath.Join(r.out, "windows", "tandem-1.2.3-windows-"+name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sum := func(name string) string { return fmt.Sprintf("%X", sha256.Sum256([]byte(name))) }
	if err := r.managers(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(r.out, "managers", name))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "{{") {
			t.Errorf("%s:\n%s", name, text)
		}
		return string(text)
	}
	const winget, at = "winget/manifests/t/TandemProxy/Tandem/1.2.3/TandemProxy.Tandem", "https://github.com/tandem-proxy/tandem/releases/download/v1.2.3/tandem-1.2.3-windows-"
	installer := read(winget + ".installer.yaml")
	for _, want := range []string{
		"PackageVersion: 1.2.3\n", "ReleaseDate: 2027-01-15\n",
		"\n- Architecture: x64\n  InstallerUrl: " + at + "amd64.msi\n  InstallerSha256: " + sum("amd64.msi") + "\n",
		"\n- Architecture: arm64\n  InstallerUrl: " + at + "arm64.msi\n  InstallerSha256: " + sum("arm64.msi") + "\nManifestType: installer\n",
	} {
		if !strings.Contains(installer, want) {
			t.Errorf("no %q in\n%s", want, installer)
		}
	}
	if read(winget+".yaml") == "" || !strings.Contains(read(winget+".locale.en-US.yaml"), "/releases/tag/v1.2.3\n") {
		t.Error("winget's other manifests")
	}
	var scoop struct {
		Version      string
		Architecture map[string]struct{ URL, Hash string }
	}
	if err := json.Unmarshal([]byte(read("scoop/tandem.json")), &scoop); err != nil {
		t.Fatal(err)
	}
	if a := scoop.Architecture["64bit"]; scoop.Version != "1.2.3" || a.URL != at+"amd64.zip" || a.Hash != sum("amd64.zip") || scoop.Architecture["arm64"].Hash != sum("arm64.zip") {
		t.Errorf("%+v", scoop)
	}
	if formula := read("homebrew/tandem.rb"); !strings.Contains(formula, `tandem.git", tag: "v1.2.3", revision: "c0ffee"`) {
		t.Error(formula)
	}

	r.out, r.targets = t.TempDir(), []target{{"linux", "amd64"}}
	if err := r.managers(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(r.out, "managers", "scoop")); !os.IsNotExist(err) {
		t.Errorf("without Windows: %v", err)
	}
}
