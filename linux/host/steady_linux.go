package host

import (
	"errors"

	"golang.org/x/sys/unix"
)

// steadyTries is how often a list is read that others keep changing.
const steadyTries = 10

// Steadily calls read, which lists something of the kernel's, until that did not
// change under its hands: then the kernel says that something may be missing
// (NLM_F_DUMP_INTR), which netlink libraries tell as EINTR.
func Steadily(read func() error) (err error) {
	for range steadyTries {
		if err = read(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}
