package nftables

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// absent adds dataplane.ErrAbsent to what a question to nf_tables came to, where
// that says that the kernel has no nf_tables: EINVAL is how nfnetlink calls a
// subsystem that it does not know, and the others are from a kernel without any
// nfnetlink.
func absent(err error) error {
	for _, missing := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL} {
		if errors.Is(err, missing) {
			return fmt.Errorf("%w: nf_tables %w in the kernel", err, dataplane.ErrAbsent)
		}
	}
	return err
}
