// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// addressMessage is an announcement of an address on a device.
func addressMessage(device uint32) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfAddrmsg)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_NEWADDR)
	binary.NativeEndian.PutUint32(b[unix.SizeofNlMsghdr+4:], device)
	return b
}

func TestOnlyOtherDevicesAreNews(t *testing.T) {
	ours, other := addressMessage(7), addressMessage(8)
	scoped := func(family, scope byte) []byte {
		b := addressMessage(8)
		b[unix.SizeofNlMsghdr], b[unix.SizeofNlMsghdr+3] = family, scope
		return b
	}
	for _, tt := range []struct {
		what     string
		messages []byte
		want     bool
	}{
		{"nothing", nil, false},
		{"ours", append(ours, ours...), false},
		{"another's behind ours", append(ours, other...), true},
		{"cut short", other[:20], false},
		{"a link-local address of IPv6", scoped(unix.AF_INET6, unix.RT_SCOPE_LINK), false},
		{"another of IPv6", scoped(unix.AF_INET6, unix.RT_SCOPE_UNIVERSE), true},
		{"one of IPv4, whose scope the administrator chooses", scoped(unix.AF_INET, unix.RT_SCOPE_LINK), true},
	} {
		if got := concernsOther(tt.messages, func(device int) bool { return device == 7 }); got != tt.want {
			t.Errorf("%s: %t", tt.what, got)
		}
	}
}

func FuzzConcernsOther(f *testing.F) {
	f.Add(addressMessage(7), 7)
	f.Add(append(addressMessage(7), addressMessage(8)...), 7)
	f.Fuzz(func(_ *testing.T, b []byte, device int) { // must end
		concernsOther(b, func(d int) bool { return d == device })
	})
}

// A list that changed while it was read is read again, but not forever; any other
// error is reported at once.
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
