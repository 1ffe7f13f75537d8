// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// Without CAP_NET_ADMIN auto takes relays on loopback addresses, at once and for the
// reason that it says; doctor says the same. In a pod that would look like a proxy:
// there it fails. The test runs itself as another user.
func TestAutoWithoutPrivileges(t *testing.T) {
	if os.Getenv("TANDEM_TEST_UNPRIVILEGED") == "" {
		again := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), "TANDEM_TEST_UNPRIVILEGED=1", "TMPDIR="+os.TempDir())
		if os.Geteuid() == 0 {
			again.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		again.Dir = "/"
		if out, err := again.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	c := config.Default()
	var out bytes.Buffer
	begin := time.Now()
	choice, err := thisSystem().choose(t.Context(), &c, slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil || choice.Name != "userspace" || len(choice.Trials) != 1 || time.Since(begin) > 20*time.Second {
		t.Errorf("%v, %s after %d trials and %s", err, choice.Name, len(choice.Trials), time.Since(begin))
	}
	if !strings.Contains(out.String(), "lacks=CAP_NET_ADMIN") {
		t.Errorf("the log does not say what is missing:\n%s", &out)
	}
	if why := choice.Fallback(); !strings.Contains(why, "lacks CAP_NET_ADMIN") || !strings.Contains(why, "loopback addresses only") {
		t.Errorf("status says %q of the fallback", why)
	}
	if mode := examineModes(t.Context(), &c)[0]; mode.Level != diagnosis.Warn || !strings.Contains(mode.Found, "selects userspace here, on loopback addresses only: this process lacks CAP_NET_ADMIN") {
		t.Errorf("doctor: %+v", mode)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	if choice, err := thisSystem().choose(t.Context(), &c, slog.New(slog.DiscardHandler)); err == nil {
		t.Errorf("a pod: %s", choice.Name)
	}
	if mode := examineModes(t.Context(), &c)[0]; mode.Level != diagnosis.Fail {
		t.Errorf("doctor in a pod: %+v", mode)
	}
}
