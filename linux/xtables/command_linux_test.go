package xtables

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// iptables-restore takes a read that is interrupted for the end of its script,
// and interrupts itself: see inMemory. A pipe would fail here, after a second.
func TestASlowRestoreIsNotCutShort(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	found, err := FindTools(t.Context())
	if err != nil {
		t.Skip(err)
	}
	for _, tools := range found {
		t.Run(string(tools.Variant), func(t *testing.T) {
			runtime.LockOSThread() // and never unlocked: the thread ends with the test
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				t.Skipf("no network namespace can be made here: %v", err)
			}
			if _, err := tools.Save(t.Context(), model.IPv4, NAT); err != nil {
				t.Skip(err)
			}
			script := []byte("*nat\n:KUBE-SLOW - [0:0]\n" + strings.Repeat("# a comment\n", 100_000) + "COMMIT\n")
			if _, err := run(t.Context(), script, "/bin/sh", "-c", "test -f /dev/stdin"); err != nil {
				t.Errorf("a script is not read from a file: %v", err)
			}
			if err := tools.Restore(t.Context(), model.IPv4, script); err != nil {
				t.Fatal(err)
			}
			if text, err := tools.Save(t.Context(), model.IPv4, NAT); err != nil || !strings.Contains(text, ":KUBE-SLOW") {
				t.Errorf("not all of the script was done (%v)", err)
			}
		})
	}
}
