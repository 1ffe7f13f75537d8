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
	"usr/bin/tandem", "usr/bin/kubectl-tandem", "etc/default/tandem", "usr/share/man/man8/tandem.8", "usr/share/man/man8/tandem-run.8", "usr/share/man/man7/tandem-kubeadm.7", "usr/share/doc/tandem/config.yaml", "usr/share/doc/tandem/apparmor", "usr/share/doc/tandem/tandem.cil",
	"usr/share/bash-completion/completions/tandem", "usr/share/zsh/site-functions/_tandem", "usr/share/fish/vendor_completions.d/tandem.fish",
}

// Names of packages are kept by a release on GitHub and the same in the lists of repositories,
// also those of a pre-release, whose versions have a "~" in deb and rpm.
func TestPrereleaseNames(t *testing.T) {
	r := unsigned(t, "1.2.3-rc.1")
	k, err := newKey(secret(), r.when)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.repositories(k); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "./assets", r.out).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const deb, rpm = "tandem_1.2.3-rc.1-1_amd64.deb", "tandem-1.2.3-rc.1-1.x86_64.rpm"
	for _, name := range []string{deb, rpm, "tandem_1.2.3_rc.1-r1_x86_64.apk"} {
		if !strings.Contains(string(out), "packages/"+name+"\n") || !strings.Contains(string(read(t, r, sums)), "  packages/"+name+"\n") {
			t.Errorf("no %s in\n%s%s", name, out, read(t, r, sums))
		}
	}
	primary := string(unzip(t, read(t, r, "packages/repodata/primary.xml.gz")))
	for what, text := range map[string]string{
		"Version: 1.2.3~rc.1-1\n": string(read(t, r, "packages/Packages")), "Filename: " + deb + "\n": string(read(t, r, "packages/Packages")),
		`<version epoch="0" ver="1.2.3~rc.1" rel="1"/>`: primary, `<location href="` + rpm + `"/>`: primary,
	} {
		if !strings.Contains(text, what) {
			t.Errorf("no %s in\n%s", what, text)
		}
	}
}

// What a release does not keep is no asset of it.
func TestAssetsKeepTheirNames(t *testing.T) {
	for what, names := range map[string][]string{"a letter of others": {"packages/tandem_1~rc.deb"}, "the same name": {"bin/tandem", "images/tandem"}, "hidden": {"bin/.tandem"}, "a space": {"bin/tandem two"}} {
		dir := t.TempDir()
		for _, name := range append(names, sums) {
			put(t, filepath.Join(dir, name), name)
		}
		if out, err := exec.CommandContext(t.Context(), "./assets", dir).CombinedOutput(); err == nil || !strings.HasSuffix(string(out), "does not keep:\n"+names[len(names)-1]+"\n") {
			t.Errorf("%s: %v: %s", what, err, out)
		}
	}
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

// An apk is tar archives behind one another, each compressed by itself. Its scripts
// are those of deb and rpm.
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
	demand(t, listing(t, text), "etc/init.d/tandem", "etc/logrotate.d/tandem", "PKGINFO")
	have := map[string]string{}
	for in := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(h.Name, ".p") {
			script, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			have[h.Name] = string(script)
		}
	}
	for name, want := range map[string]string{".post-install": "rc-update --quiet add tandem", ".post-upgrade": "rc-service --quiet tandem", ".pre-deinstall": "tandem cleanup"} {
		if !strings.Contains(have[name], want) {
			t.Errorf("%s: no %q in %q", name, want, have[name])
		}
	}
}

// standIn is a command of the system that only says how it was called. A service does
// not run yet.
const standIn = `#!/bin/sh
echo "${0##*/} $*"
case "$*" in
  "--quiet tandem status" | "--quiet is-active tandem") exit 3 ;;
  "show default") echo " tandem | default" ;;
esac
`

// The scripts call what the service manager of the machine has, for each way in which
// deb, rpm and apk call them.
func TestScripts(t *testing.T) {
	const openrc, systemd = "openrc/softlevel", "systemd/system/x" // what is in /run
	for _, c := range []struct {
		script, manager, args, want string
		config                      bool
	}{
		{"postinstall", openrc, "1.2.3-r1", "rc-update --quiet add tandem default; not started; rc-service tandem start", false},
		{"postinstall", openrc, "1.2.3-r1", "rc-update --quiet add tandem default; tandem config check; rc-service --quiet tandem start", true},
		{"postinstall", openrc, "1.3.0-r1 1.2.3-r1", "tandem config check; rc-service --quiet tandem start", true},
		{"postinstall", systemd, "configure", "systemctl enable; not started; systemctl start", false},
		{"postinstall", systemd, "configure 1.2.2", "tandem config check; systemctl --no-block start tandem", true},
		{"postinstall", systemd, "1", "systemctl enable; not started", false},
		{"postinstall", systemd, "2", "tandem config check; systemctl --no-block start tandem", true},
		{"postinstall", "none", "configure", "", false},
		{"preremove", openrc, "1.2.3-r1", "rc-service --quiet --ifexists tandem stop; rc-update --quiet del tandem; tandem cleanup", true},
		{"preremove", openrc, "remove", "rc-service --quiet --ifexists tandem stop; tandem cleanup", true},
		{"preremove", systemd, "remove", "systemctl --quiet stop tandem; tandem cleanup", true},
		{"preremove", systemd, "0", "systemctl --quiet disable --now tandem; tandem cleanup", true},
		{"preremove", systemd, "1", "", true},
		{"preremove", "none", "remove", "tandem cleanup", true},
		{"preremove", "none", "upgrade 1.3.0", "", true},
	} {
		name := strings.Join([]string{c.script, c.manager, c.args}, " ")
		root := t.TempDir()
		files := []string{"bin/systemctl", "bin/rc-service", "bin/rc-update", "bin/tandem", "run/" + c.manager}
		if c.config {
			files = append(files, "etc/tandem/config.yaml")
		}
		for _, f := range files {
			f = filepath.Join(root, f)
			if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, []byte(standIn), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile("../../installers/packages/" + c.script)
		if err != nil {
			t.Fatal(err)
		}
		// Its absolute paths lead into the root folder.
		own := strings.NewReplacer("/usr/bin/tandem", root+"/bin/tandem", "/run/", root+"/run/", "/etc/", root+"/etc/").Replace(string(text))
		cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", own, "sh"}, strings.Fields(c.args)...)...)
		cmd.Env = []string{"PATH=" + root + "/bin:/usr/bin:/bin"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		rest := string(out)
		for _, want := range strings.Split(c.want, "; ") {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s: no %q in order in:\n%s", name, want, out)
			}
			rest = after
		}
		if c.want == "" && rest != "" {
			t.Errorf("%s: %s", name, rest)
		}
	}
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
