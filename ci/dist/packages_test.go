// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// payload is what every package must have.
var payload = []string{
	"usr/bin/tandem", "usr/bin/kubectl-tandem", "etc/default/tandem", "usr/share/man/man8/tandem.8", "usr/share/man/man8/tandem-run.8", "usr/share/doc/tandem/config.yaml",
	"usr/share/bash-completion/completions/tandem", "usr/share/zsh/site-functions/_tandem", "usr/share/fish/vendor_completions.d/tandem.fish",
}

func find(t *testing.T, r release, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.out, "packages", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v %v", pattern, found, err)
	}
	return found[0]
}

func demand(t *testing.T, list string, names ...string) {
	t.Helper()
	have := map[string]bool{}
	for _, name := range strings.Fields(list) {
		have[strings.Trim(strings.TrimPrefix(name, "."), "/")] = true
	}
	for _, name := range append(names, payload...) {
		if !have[name] {
			t.Errorf("no %s in it", name)
		}
	}
}

func listing(t *testing.T, text []byte) string {
	t.Helper()
	var names []string
	for in := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return strings.Join(names, " ")
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

// An apk is tar archives behind one another, each compressed by itself.
func TestApk(t *testing.T) {
	r := built(t)
	f, err := os.Open(find(t, r, "tandem_1.2.3*_x86_64.apk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	demand(t, listing(t, text), "etc/init.d/tandem", "PKGINFO")
}

func TestRpm(t *testing.T) {
	r := built(t)
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skipf("nothing here reads rpm: %v", err)
	}
	file := find(t, r, "tandem-1.2.3*.x86_64.rpm")
	query := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "rpm", append([]string{"--query", "--package", file}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("rpm %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	demand(t, query("--list"), "usr/lib/systemd/system/tandem.service", "etc/tandem")
	if conf := strings.TrimSpace(query("--configfiles")); conf != "/etc/default/tandem" {
		t.Errorf("configuration files: %s", conf)
	}
	if s := query("--scripts"); !strings.Contains(s, "not started, there is no") || !strings.Contains(s, "tandem cleanup") {
		t.Errorf("scripts: %s", s)
	}
	if out, err := exec.CommandContext(t.Context(), "rpm", "--checksig", "--nosignature", file).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestDeb(t *testing.T) {
	r := built(t)
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skipf("nothing here reads deb: %v", err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		file := find(t, r, "tandem_1.2.3*_"+arch+".deb")
		tarball, err := exec.CommandContext(t.Context(), "dpkg-deb", "--fsys-tarfile", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		demand(t, listing(t, tarball), "lib/systemd/system/tandem.service", "etc/tandem")
		conf, err := exec.CommandContext(t.Context(), "dpkg-deb", "--info", file, "conffiles").Output()
		if err != nil || string(conf) != "/etc/default/tandem\n" {
			t.Errorf("conffiles: %v %s", err, conf)
		}
	}
}
