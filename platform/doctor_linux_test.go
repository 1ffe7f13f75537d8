// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// What is broken in a real network namespace is found there: sysctls, chains of
// others before ours, rules of iptables before those of Services, a listener on a
// node port, lo that is down.
func TestDoctorOnABrokenNode(t *testing.T) {
	runtime.LockOSThread() // the thread, and its namespace, end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	t.Setenv("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
	levels := func() map[string]diagnosis.Level {
		c := config.Default()
		all := map[string]diagnosis.Level{}
		for _, check := range diagnosis.Node(Facts(t.Context(), &c, nil)) {
			all[check.ID] = check.Level
		}
		return all
	}
	expect := func(want map[string]diagnosis.Level) {
		t.Helper()
		got := levels()
		for id, level := range want {
			if got[id] != level {
				t.Errorf("%s: %q, want %s", id, got[id], level)
			}
		}
	}
	expect(map[string]diagnosis.Level{"foreign-chains": diagnosis.OK, "forward-policy": diagnosis.OK, "foreign-jumps": diagnosis.OK, "loopback": diagnosis.Fail})

	for _, s := range [][2]string{{"net/ipv4/ip_forward", "0"}, {"net/ipv4/ip_local_port_range", "20000 60999"}, {"net/ipv4/conf/all/route_localnet", "1"}} {
		if err := os.WriteFile("/proc/sys/"+s[0], []byte(s[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "nft", "add table ip mesh; add chain ip mesh first { type nat hook prerouting priority -150; }; add table inet wall; add chain inet wall forward { type filter hook forward priority 0; policy drop; }")
	command(t, "iptables", "-t nat -N KUBE-SERVICES")
	command(t, "iptables", "-t nat -A PREROUTING -p tcp -j REDIRECT --to-ports 15001")
	command(t, "iptables", "-t nat -A PREROUTING -j KUBE-SERVICES")
	expect(map[string]diagnosis.Level{
		"forwarding-ipv4": diagnosis.Fail, "local-ports": diagnosis.Warn, "route-localnet": diagnosis.Note,
		"foreign-chains": diagnosis.Warn, "forward-policy": diagnosis.Warn, "foreign-jumps": diagnosis.Warn, "default-route-ipv4": diagnosis.Warn,
	})
}

// command runs a tool of the system on the test's own thread.
func command(t *testing.T, name, line string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	args := strings.Fields(line)
	if name == "nft" {
		args = []string{line}
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, line, err, out)
	}
}
