// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Only what the kernel does not have means that a family is not served: what
// could not be found out is an error.
func TestLacking(t *testing.T) {
	for err, want := range map[error]bool{
		nil:                      false,
		unix.EAFNOSUPPORT:        true,
		unix.ENOENT:              true,
		dataplane.ErrAbsent:      true,
		nft.ErrAltered:           true,
		nft.ErrForeign:           false,
		dataplane.ErrInterrupted: false,
		unix.ENOMEM:              false,
		unix.EPERM:               false,
		context.Canceled:         false,
		errors.New("no buffer"):  false,
	} {
		if err != nil {
			err = nft.Advise(fmt.Errorf("nftables: %w", err))
		}
		if lacking(err) != want {
			t.Errorf("%v: lacking %v", err, !want)
		}
	}
}
