// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Only a kernel that was asked and answered can lack something.
func TestUndecided(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EBUSY:               true,
		unix.ENOMEM:              true,
		unix.ENOBUFS:             true,
		context.DeadlineExceeded: true,
		netlink.ErrNoAnswer:      true,
		host.ErrLocked:           true,
		unix.EPERM:               false,
		unix.ENOENT:              false,
		unix.EOPNOTSUPP:          false,
		unix.EINVAL:              false,
		dataplane.ErrAbsent:      false,
		context.Canceled:         false,
	} {
		if got := host.Undecided(fmt.Errorf("nftables: %w", err)); errors.Is(got, dataplane.ErrUndecided) != want || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if host.Undecided(nil) != nil {
		t.Error("success is an error")
	}
}
