// SPDX-License-Identifier: Apache-2.0

package apparmor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program is where packages have it.
const program = "/usr/bin/tandem"

// loaded loads the profile, which ci/guest/run compiled, and puts the program where packages
// have it: in a guest alone, as it changes the machine.
func loaded(t *testing.T) {
	t.Helper()
	policy, own := os.Getenv("TANDEM_APPARMOR_POLICY"), os.Getenv("TANDEM_TEST_BIN")
	if policy == "" || own == "" {
		t.Skip("changes the machine it is on: ci/guest/run has it run in a guest")
	}
	var root unix.Statfs_t
	if err := unix.Statfs("/", &root); err != nil || root.Type != unix.RAMFS_MAGIC && root.Type != unix.TMPFS_MAGIC {
		t.Skipf("this is no guest: its root is a file system of type %#x, %v", root.Type, err)
	}
	const security = "/sys/kernel/security"
	if err := unix.Mount("securityfs", security, "securityfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Skipf("a kernel without security modules: %v", err)
	}
	if _, err := os.Stat(security + "/apparmor"); err != nil {
		t.Skipf("a kernel without AppArmor: %v", err)
	}
	text, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(security+"/apparmor/.replace", text, 0); err != nil {
		t.Fatalf("the kernel does not take the profile: %v", err)
	}
	copyFile(t, own, program, 0o755)
	for _, dir := range []string{"/etc/tandem/services", "/var/lib/tandem"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, "../../ci/manifests/nginx.yaml", "/etc/tandem/services/nginx.yaml", 0o644)
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, mode))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// confined is a command of the program under the profile, as systemd and container runtimes
// start it.
func confined(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	const start = `printf 'exec tandem' > /proc/self/attr/exec && exec "$0" "$@"`
	return exec.CommandContext(t.Context(), "sh", append([]string{"-c", start}, args...)...)
}

// bound leaves programs that this goroutine starts the capabilities of the unit, with its
// drop-in for iptables. The thread ends with the goroutine.
func bound(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if c == unix.CAP_NET_ADMIN || c == unix.CAP_NET_RAW {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) { // a kernel without it
			t.Fatal(err)
		}
	}
}

// denied returns what the kernel said since the last call that the profile does not allow.
func denied(t *testing.T) string {
	t.Helper()
	const readAndClear = 4 // syslog(2)
	log := make([]byte, 1<<20)
	n, err := unix.Klogctl(readAndClear, log)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(log[:n])) {
		if strings.Contains(line, `apparmor="DENIED"`) {
			all = append(all, line)
		}
	}
	return strings.Join(all, "")
}

func TestProfile(t *testing.T) {
	loaded(t)
	denied(t) // of before
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			bound(t)
			proxy := confined(t, program, "run", "--manifests=/etc/tandem/services", "--hostname-override=node-1", "--proxy-mode="+mode)
			var said strings.Builder
			proxy.Stdout, proxy.Stderr = &said, &said
			if err := proxy.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- proxy.Wait() }()
			served := ""
			for range 100 {
				out, err := exec.CommandContext(t.Context(), program, "status").CombinedOutput()
				if served = string(out); err == nil && strings.Contains(served, "nginx") && strings.Contains(served, "mode "+mode) {
					break
				}
				time.Sleep(200 * time.Millisecond)
			}
			label, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(proxy.Process.Pid), "attr/current"))
			if err != nil || !strings.HasPrefix(string(label), "tandem (enforce)") {
				t.Errorf("the proxy is not confined: %s, %v", label, err)
			}
			if err := proxy.Process.Signal(unix.SIGTERM); err != nil {
				t.Error(err)
			}
			<-ended
			if !strings.Contains(served, "mode "+mode) {
				t.Errorf("serves nothing: %s\n%s", served, said.String())
			}
			if all := denied(t); all != "" {
				t.Errorf("denied:\n%s", all)
			}
			if out, err := confined(t, program, "cleanup").CombinedOutput(); err != nil {
				t.Errorf("cleanup: %v: %s", err, out)
			}
			if all := denied(t); all != "" {
				t.Errorf("cleanup is denied:\n%s", all)
			}
		})
	}
	const config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for path, allowed := range map[string]bool{"/etc/tandem/config.yaml": true, "/root/config.yaml": false} {
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := confined(t, program, "config", "check", path).CombinedOutput()
		if (err == nil) != allowed || !allowed && !strings.Contains(string(out), "permission denied") {
			t.Errorf("reads %s: %v: %s", path, err, out)
		}
	}
	if out, err := confined(t, "sh", "-c", "cat /etc/tandem/config.yaml").CombinedOutput(); err == nil {
		t.Errorf("runs other programs: %s", out)
	}
	if all := denied(t); !strings.Contains(all, `"/root/config.yaml"`) || !strings.Contains(all, `name="/usr/bin/cat"`) {
		t.Errorf("the kernel does not say what it denied:\n%s", all)
	}
}
