// SPDX-License-Identifier: Apache-2.0

package apparmor

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/installers/test/guest"
)

// loaded loads the profile, which ci/guest/run compiled, and puts the program where packages have it.
func loaded(t *testing.T) guest.Profile {
	t.Helper()
	policy := guest.Install(t, "TANDEM_APPARMOR_POLICY")[0]
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
	return guest.Profile{
		Label: "tandem (enforce)", Words: []string{`apparmor="DENIED"`},
		Command: func(t *testing.T, args ...string) *exec.Cmd {
			return confined(t, append([]string{guest.Program}, args...)...)
		},
	}
}

// confined is a command under the profile, as systemd and container runtimes start it.
func confined(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	const start = `printf 'exec tandem' > /proc/self/attr/exec && exec "$0" "$@"`
	return exec.CommandContext(t.Context(), "sh", append([]string{"-c", start}, args...)...)
}

func TestProfile(t *testing.T) {
	profile := loaded(t)
	profile.Denied(t) // of before
	for _, mode := range guest.Modes() {
		t.Run(mode, func(t *testing.T) {
			runtime.LockOSThread() // which ends with the goroutine
			if err := guest.Bound(); err != nil {
				t.Fatal(err)
			}
			profile.Serves(t, mode)
		})
	}
	const config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for path, allowed := range map[string]bool{"/etc/tandem/config.yaml": true, "/root/config.yaml": false} {
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := profile.Command(t, "config", "check", path).CombinedOutput()
		if (err == nil) != allowed || !allowed && !strings.Contains(string(out), "permission denied") {
			t.Errorf("reads %s: %v: %s", path, err, out)
		}
	}
	if out, err := confined(t, "sh", "-c", "cat /etc/tandem/config.yaml").CombinedOutput(); err == nil {
		t.Errorf("runs other programs: %s", out)
	}
	if all := profile.Denied(t); !strings.Contains(all, `"/root/config.yaml"`) || !strings.Contains(all, `name="/usr/bin/cat"`) {
		t.Errorf("the kernel does not say what it denied:\n%s", all)
	}
}
