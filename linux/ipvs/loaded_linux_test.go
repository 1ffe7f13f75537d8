// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"log/slog"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
)

// Where IPVS is not loaded, looking for what is left of us says so, and leaves
// that as it is.
func TestOpenDoesNotLoadIPVS(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err == nil {
		t.Skip("this kernel has IPVS loaded")
	}
	c := config.Default()
	if _, err := Mode().Open(t.Context(), &c, slog.New(slog.DiscardHandler)); !errors.Is(err, dataplane.ErrAbsent) {
		t.Errorf("opened without IPVS: %v", err)
	}
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err == nil {
		t.Error("the kernel has loaded IPVS")
	}
}
