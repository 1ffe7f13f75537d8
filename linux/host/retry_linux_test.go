// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// A list that changed while it was read is read again, but not for ever; any other
// error is told at once.
func TestRetryInterrupted(t *testing.T) {
	changed := fmt.Errorf("list addresses: %w", unix.EINTR)
	for _, c := range []struct {
		name  string
		until int // readings that are interrupted
		then  error
		want  int
	}{
		{"quiet", 0, nil, 1},
		{"changed twice", 2, nil, 3},
		{"refused", 1, unix.EPERM, 2},
		{"never quiet", dumpAttempts + 5, nil, dumpAttempts},
	} {
		n := 0
		err := RetryInterrupted(func() error {
			if n++; n <= c.until {
				return changed
			}
			return c.then
		})
		want := c.then
		if c.until > dumpAttempts {
			want = changed
		}
		if n != c.want || !errors.Is(err, want) {
			t.Errorf("%s: %d readings, %v", c.name, n, err)
		}
	}
}
