// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/ci/debian"
)

const config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node-1\nmode: nftables\n"

// deb builds the package for this machine, in a version.
func deb(t *testing.T, version string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "dist")
	cmd := exec.CommandContext(t.Context(), "go", "run", ".", "-out", out, "-version", version, "-targets", "linux/"+runtime.GOARCH, "-only", "programs,licenses,packages")
	cmd.Dir = "../../ci/dist"
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1800000000")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ci/dist: %v: %s", err, said)
	}
	found, err := filepath.Glob(filepath.Join(out, "packages", "*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatal(err, found)
	}
	return found[0]
}

// The deb on a machine with systemd: installed, configured, upgraded while it
// runs, removed, purged.
func TestDeb(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program twice")
	}
	m := debian.Boot(t, "../../ci/debian")
	m.Copy(deb(t, "v1.0.0"), "/root/one.deb", 0o644)
	m.Copy(deb(t, "v1.1.0"), "/root/two.deb", 0o644)
	m.Copy("../../ci/manifests/nginx.yaml", "/srv/services/nginx.yaml", 0o644)

	installed(t, m)
	upgraded(t, m)
	removed(t, m)
}

// installed: nothing starts before there is a configuration, also after a
// reboot; a second installation changes nothing.
func installed(t *testing.T, m *debian.Machine) {
	t.Helper()
	if out := m.Do("dpkg", "-i", "/root/one.deb"); !strings.Contains(out, "not started, there is no /etc/tandem/config.yaml yet") {
		t.Errorf("install: %s", out)
	}
	want(t, m, "UnitFileState", "enabled")
	m.Do("systemctl", "start", "tandem")
	want(t, m, "ActiveState", "inactive")
	want(t, m, "ConditionResult", "no")
	m.Write("/etc/default/tandem", "TANDEM_FLAGS=--manifests=/srv/services\n", 0o644)
	m.Write("/etc/tandem/config.yaml", config, 0o600)
	m.Do("systemctl", "start", "tandem")
	want(t, m, "StatusText", "mode nftables, 1 Service")
	if out, err := m.Try("tandem", "install", "--config", "/etc/tandem/config.yaml", "--manifests", "/srv/services"); err == nil || !strings.Contains(out, "installed already") {
		t.Errorf("a second installation: %v: %s", err, out)
	}
	if out, err := m.Try("tandem", "uninstall"); err == nil || !strings.Contains(out, "remove the package") {
		t.Errorf("uninstall of what the package brought: %v: %s", err, out)
	}
	want(t, m, "UnitFileState", "enabled")
}

// upgraded: the new version runs, the configuration is the user's. What would
// not run, or a user without the right to install, does not affect the running proxy.
func upgraded(t *testing.T, m *debian.Machine) {
	t.Helper()
	const own = "TANDEM_FLAGS=--manifests=/srv/services\n"
	pid := m.Property("tandem", "MainPID")
	if out, err := m.Try("setpriv", "--reuid=65534", "--clear-groups", "dpkg", "-i", "/root/two.deb"); err == nil {
		t.Errorf("any user can install: %s", out)
	}
	for _, c := range []struct{ mistake, flags, said string }{
		{"clusterCIDR: nonsense\n", own, "nonsense"},
		{"clientConnection: {kubeconfig: /etc/tandem/none.conf}\n", "", "set --kubeconfig to its path"},
		{"", "TANDEM_FLAGS=\"--manifests=/srv/none\"\n", "/srv/none"},
	} {
		m.Write("/etc/default/tandem", c.flags, 0o644)
		m.Write("/etc/tandem/config.yaml", config+c.mistake, 0o600)
		if out := m.Do("dpkg", "-i", "/root/two.deb"); !strings.Contains(out, c.said) || !strings.Contains(out, "a running tandem is not changed") {
			t.Errorf("upgrade with %q and flags %q: %s", c.mistake, c.flags, out)
		}
		want(t, m, "MainPID", pid)
		if out := m.Do("tandem", "status"); !strings.Contains(out, "1.0.0") {
			t.Errorf("%q: not the old version: %s", c.mistake, out)
		}
	}
	m.Write("/etc/default/tandem", own, 0o644)
	m.Write("/etc/tandem/config.yaml", config, 0o600)
	m.Do("dpkg", "-i", "/root/two.deb")
	m.Until("tandem", "MainPID", func(s string) bool { return s != pid && s != "0" })
	m.Until("tandem", "ActiveState", func(s string) bool { return s == "active" })
	if out := m.Do("tandem", "status"); !strings.Contains(out, "1.1.0") {
		t.Errorf("not the new version: %s", out)
	}
	if out := m.Do("cat", "/etc/default/tandem"); out != "TANDEM_FLAGS=--manifests=/srv/services" {
		t.Errorf("the flags are %s", out)
	}
}

// removed: it is stopped and its rules are gone; installed again it runs again;
// purging keeps files that a user wrote and nothing else.
func removed(t *testing.T, m *debian.Machine) {
	t.Helper()
	if out := m.Do("dpkg", "-r", "tandem"); !strings.Contains(out, "nftables: nothing of tandem is left") {
		t.Errorf("remove: %s", out)
	}
	if out, err := m.Try("pidof", "tandem"); err == nil {
		t.Errorf("it still runs: %s", out)
	}
	m.Do("test", "-e", "/etc/default/tandem")
	m.Do("dpkg", "-i", "/root/two.deb")
	m.Until("tandem", "ActiveState", func(s string) bool { return s == "active" })
	m.Do("dpkg", "-r", "tandem")
	if out := m.Do("dpkg", "-P", "tandem"); !strings.Contains(out, "your /etc/tandem/config.yaml is kept") {
		t.Errorf("purge: %s", out)
	}
	left := m.Do("find", "/etc", "/usr", "/var/lib", "-name", "*tandem*", "-not", "-path", "/var/lib/dpkg/*")
	if left != "/etc/tandem" {
		t.Errorf("left behind: %s", left)
	}
}

func want(t *testing.T, m *debian.Machine, property, value string) {
	t.Helper()
	if got := m.Property("tandem", property); got != value {
		t.Errorf("%s is %q, not %q", property, got, value)
	}
}
