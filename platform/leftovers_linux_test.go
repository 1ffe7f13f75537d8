// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"errors"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

// Looking for what may be there, and removing it, leaves a machine on which there
// is nothing as it is: not even an empty table is made.
func TestClearingNothingWritesNothing(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skipf("the rules are listed with nft: %v", err)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	rules := func() string {
		out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		if err != nil {
			t.Fatalf("nft: %v: %s", err, out)
		}
		return string(out)
	}
	c := config.Default()
	for _, m := range Local() {
		if err := m.Clear(t.Context(), &c); err != nil && !errors.Is(err, dataplane.ErrAbsent) {
			t.Errorf("mode %s: %v", m.Name, err)
		}
		if now := rules(); now != "" {
			t.Errorf("after mode %s:\n%s", m.Name, now)
		}
	}
	if found, err := takeOver(t.Context(), Local()); len(found) > 0 || err != nil || rules() != "" {
		t.Errorf("kube-proxy's: %q, %v:\n%s", found, err, rules())
	}
}
