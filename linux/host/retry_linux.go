// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"

	"golang.org/x/sys/unix"
)

// dumpAttempts is how often a dump is read that changes while it is read.
const dumpAttempts = 10

// RetryInterrupted calls read, which dumps kernel objects, until the dump is
// consistent. The kernel flags one that may lack entries (NLM_F_DUMP_INTR), which
// netlink libraries return as EINTR.
func RetryInterrupted(read func() error) (err error) {
	for range dumpAttempts {
		if err = read(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}
