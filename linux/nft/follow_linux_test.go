// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// Two processes that follow packets on one network do so beside each other, also where both have the same process
// id, as those of two containers may.
func TestPacketsAreFollowedAtOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	runtime.LockOSThread() // and the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	which := Followed{Proto: model.TCP, Dst: netip.MustParseAddrPort("10.96.0.10:80")}
	for range 3 {
		f, err := Follow(t.Context(), which)
		if errors.Is(err, dataplane.ErrAbsent) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
}
