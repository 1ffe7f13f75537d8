// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Undecided adds dataplane.ErrUndecided to the error of a probe that does not mean that
// something is missing: the kernel, or another program, was busy or did not answer.
func Undecided(err error) error {
	transient := []error{
		context.DeadlineExceeded, ErrLocked, netlink.ErrNoAnswer, netlink.ErrInterrupted, dataplane.ErrInterrupted,
		unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ETIMEDOUT,
	}
	if errors.Is(err, dataplane.ErrUndecided) || !slices.ContainsFunc(transient, func(t error) bool { return errors.Is(err, t) }) {
		return err
	}
	return fmt.Errorf("%w; %w", err, dataplane.ErrUndecided)
}
