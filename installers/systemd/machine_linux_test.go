// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/ci/debian"
)

const configHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node-1\n"

// machine boots a machine that has the program and a Service, and no
// configuration yet.
func machine(t *testing.T) *debian.Machine {
	t.Helper()
	m := debian.Boot(t, "../../ci/debian")
	bin := filepath.Join(t.TempDir(), "tandem")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/tandem")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	m.Copy(bin, "/usr/local/bin/tandem", 0o755)
	m.Copy("../../ci/manifests/nginx.yaml", "/srv/services/nginx.yaml", 0o644)
	return m
}

// The whole life of the service on a real systemd: refused, installed, ready,
// confined, watched, restarted, stopped, uninstalled.
func TestService(t *testing.T) {
	m := machine(t)
	refusals(t, m)

	m.Write("/etc/tandem/config.yaml", configHead+"mode: nftables\n", 0o600)
	m.Do("sh", "-c", "cd /etc/tandem && tandem install --config config.yaml --manifests ../../srv/services")
	refused := second(t, m)
	judged(t, m)

	m.Do("tandem", "start")
	if s, _, _ := strings.Cut(m.Property("tandem", "StatusText"), ";"); s != "mode nftables, 1 Service" {
		t.Errorf("ready, but the status is %q", s)
	}
	if out := m.Do("tandem", "status"); !strings.Contains(out, "nginx") {
		t.Errorf("ready, but: %s", out)
	}
	upgraded(t, m, refused)
	confined(t, m)
	watched(t, m)
	crashed(t, m)
	otherModes(t, m)

	m.Do("tandem", "stop")
	if state, result := m.Property("tandem", "ActiveState"), m.Property("tandem", "Result"); state != "inactive" || result != "success" {
		t.Errorf("stopped: %s, %s", state, result)
	}
	m.Do("tandem", "uninstall")
	if out, err := m.Try("systemctl", "cat", "tandem"); err == nil {
		t.Errorf("uninstalled, but systemd knows it: %s", out)
	}
	if out, err := m.Try("tandem", "start"); err == nil || !strings.Contains(out, "run tandem install") {
		t.Errorf("start after that: %v: %s", err, out)
	}
}

// refusals: what cannot work is an error, and nothing is changed.
func refusals(t *testing.T, m *debian.Machine) {
	t.Helper()
	m.Write("/etc/tandem/bad.yaml", configHead+"mode: nftable\nclusterCIDR: nonsense\n", 0o644)
	m.Write("/home/someone/config.yaml", configHead, 0o644)
	m.Do("sh", "-c", "chmod 700 /home/someone && chown -R 65534 /home/someone")
	for _, c := range []struct{ name, command, want string }{
		{"a configuration in a closed home", "tandem install --config /home/someone/config.yaml --manifests /srv/services", "put it into /etc/tandem"},
		{"mistakes in the configuration", "tandem install --config /etc/tandem/bad.yaml --manifests /srv/services", "nonsense"},
		{"no configuration", "tandem install --config /etc/tandem/none.yaml --manifests /srv/services", "no such file"},
		{"no kubeconfig", "tandem install --kubeconfig /etc/tandem/none.conf", "set --kubeconfig to its path"},
		{"no manifests", "tandem install --manifests /srv/none", "no such file"},
		{"no source", "tandem install --hostname-override node-1", "--kubeconfig"},
		{"no permissions", "setpriv --reuid=65534 --clear-groups tandem install --manifests /srv/services", "run as root"},
	} {
		if out, err := m.Try("sh", "-c", c.command); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v: %s", c.name, err, out)
		}
		if out, err := m.Try("test", "-e", "/etc/systemd/system/tandem.service"); err == nil {
			t.Fatalf("%s: there is a unit: %s", c.name, out)
		}
	}
}

// second returns a check that one more installation is refused, with a word on
// what to do, and changes nothing.
func second(t *testing.T, m *debian.Machine) (refused func()) {
	t.Helper()
	const unit = "/etc/systemd/system/tandem.service"
	before := m.Do("cat", unit)
	refused = func() {
		t.Helper()
		out, err := m.Try("tandem", "install", "--config", "/etc/tandem/config.yaml", "--manifests", "/srv")
		if err == nil || !strings.Contains(out, "installed already") || !strings.Contains(out, "tandem stop and tandem start") {
			t.Errorf("a second install: %v: %s", err, out)
		}
		if after := m.Do("cat", unit); after != before {
			t.Errorf("a second install has changed the unit:\n%s\nit was\n%s", after, before)
		}
	}
	refused()
	return refused
}

// upgraded: a new program in the place of the one that runs disturbs nothing
// until the service is started again.
func upgraded(t *testing.T, m *debian.Machine, refused func()) {
	t.Helper()
	pid := m.Property("tandem", "MainPID")
	m.Do("sh", "-c", "cp /usr/local/bin/tandem /usr/local/bin/new && mv /usr/local/bin/new /usr/local/bin/tandem")
	refused()
	if now := m.Property("tandem", "MainPID"); now != pid {
		t.Errorf("process %s became %s", pid, now)
	}
	m.Do("tandem", "stop")
	if out, err := m.Try("tandem", "status"); err == nil || !strings.Contains(out, "the service is stopped: run tandem start") {
		t.Errorf("the status when it is stopped: %v: %s", err, out)
	}
	m.Do("tandem", "start")
	if out := m.Do("tandem", "status"); !strings.Contains(out, "nginx") {
		t.Errorf("started again: %s", out)
	}
}

// judged: systemd finds no fault with the unit, and little exposure.
func judged(t *testing.T, m *debian.Machine) {
	t.Helper()
	out, err := m.Try("systemd-analyze", "verify", "--man=no", "tandem.service")
	if err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
	// The threshold is in tenths.
	if out, err := m.Try("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", "tandem.service"); err != nil {
		t.Errorf("systemd-analyze security: %v: %s", err, out)
	}
	out, _ = m.Try("systemd-analyze", "security", "--no-pager", "--offline=true", "tandem.service")
	t.Log(out[strings.LastIndex(out, "→"):])
}

// confined: it has CAP_NET_ADMIN, and no file system to write.
func confined(t *testing.T, m *debian.Machine) {
	t.Helper()
	pid := m.Property("tandem", "MainPID")
	const netAdmin = "0000000000001000"
	out := m.Do("grep", "-E", "^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):", "/proc/"+pid+"/status")
	for _, want := range []string{"CapEff:\t" + netAdmin, "CapPrm:\t" + netAdmin, "CapBnd:\t" + netAdmin, "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	for path, writable := range map[string]bool{"/": false, "/usr": false, "/etc": false, "/proc/sys/kernel": false, "/proc/sys/net": true, "/var/lib/tandem": true, "/run/tandem": true} {
		options := m.Do("nsenter", "--target", pid, "--mount", "findmnt", "--noheadings", "--output", "OPTIONS", "--target", path)
		if strings.HasPrefix(options, "rw") != writable {
			t.Errorf("%s is mounted %s", path, options)
		}
	}
}

// watched: one that hangs is replaced, and one that works is not.
func watched(t *testing.T, m *debian.Machine) {
	t.Helper()
	m.Write("/etc/systemd/system/tandem.service.d/quick.conf", "[Service]\nWatchdogSec=6\nTimeoutAbortSec=1\n", 0o644)
	m.Do("systemctl", "daemon-reload")
	m.Do("systemctl", "restart", "tandem")
	fed := func() int {
		at, err := strconv.Atoi(m.Property("tandem", "WatchdogTimestampMonotonic"))
		if err != nil {
			t.Fatal(err)
		}
		return at // in microseconds
	}
	begin := fed()
	m.Until("tandem", "WatchdogTimestampMonotonic", func(string) bool { return fed()-begin > 7_000_000 }) // longer than WatchdogSec
	if n := m.Property("tandem", "NRestarts"); n != "0" {
		t.Fatalf("restarted %s times though it works\n%s", n, m.Do("journalctl", "--no-pager", "-u", "tandem", "-n", "20"))
	}
	again(t, m, "STOP")
	if out := m.Do("journalctl", "--no-pager", "-u", "tandem"); !strings.Contains(out, "Watchdog timeout") {
		t.Errorf("no watchdog in: %s", out)
	}
}

// crashed: a killed process is started again.
func crashed(t *testing.T, m *debian.Machine) {
	t.Helper()
	again(t, m, "KILL")
	if out := m.Do("tandem", "status"); !strings.Contains(out, "nginx") {
		t.Errorf("after the crash: %s", out)
	}
}

// again sends a signal to the proxy and waits for the next one to be ready.
func again(t *testing.T, m *debian.Machine, signal string) {
	t.Helper()
	restarts, err := strconv.Atoi(m.Property("tandem", "NRestarts"))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	m.Do("sh", "-c", "kill -"+signal+" "+m.Property("tandem", "MainPID"))
	want := fmt.Sprint(restarts + 1)
	m.Until("tandem", "NRestarts", func(n string) bool { return n == want })
	m.Until("tandem", "ActiveState", func(s string) bool { return s == "active" })
	t.Logf("ready again %s after SIG%s", time.Since(begun).Round(100*time.Millisecond), signal)
}

// otherModes: what the unit allows is enough for iptables, too, also for its
// sysctl.
func otherModes(t *testing.T, m *debian.Machine) {
	t.Helper()
	m.Write("/etc/tandem/config.yaml", configHead+"mode: iptables\niptables: {localhostNodePorts: true}\n", 0o600)
	m.Do("systemctl", "restart", "tandem")
	if s := m.Property("tandem", "StatusText"); s != "mode iptables, 1 Service" {
		t.Errorf("mode iptables: %q\n%s", s, m.Do("journalctl", "--no-pager", "-u", "tandem", "-n", "20"))
	}
	if v := m.Do("cat", "/proc/sys/net/ipv4/conf/all/route_localnet"); v != "0" { // relays serve node ports on 127.0.0.1
		t.Errorf("route_localnet is %s", v)
	}
	if out := m.Do("iptables", "-t", "nat", "-S"); !strings.Contains(out, "KUBE-SERVICES") {
		t.Errorf("no chains: %s", out)
	}
	legacy(t, m)
}

// legacy: what the drop-in allows is enough for the legacy variant.
func legacy(t *testing.T, m *debian.Machine) {
	t.Helper()
	m.Do("tandem", "stop")
	m.Do("tandem", "cleanup") // the variant that has rules would be taken
	m.Copy("legacy-iptables.conf", "/etc/systemd/system/tandem.service.d/legacy-iptables.conf", 0o644)
	for _, name := range []string{"iptables", "ip6tables"} {
		m.Do("update-alternatives", "--set", name, "/usr/sbin/"+name+"-legacy")
	}
	m.Do("systemctl", "daemon-reload")
	m.Do("systemctl", "restart", "tandem")
	if s := m.Property("tandem", "StatusText"); s != "mode iptables, 1 Service" {
		t.Errorf("legacy iptables: %q\n%s", s, m.Do("journalctl", "--no-pager", "-u", "tandem", "-n", "20"))
	}
	if out := m.Do("iptables-legacy", "-t", "nat", "-S"); !strings.Contains(out, "KUBE-SERVICES") {
		t.Errorf("no chains in the legacy variant: %s", out)
	}
}
