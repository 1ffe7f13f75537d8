// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
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
	for _, tt := range []struct {
		what     string
		messages []byte
		want     bool
	}{
		{"nothing", nil, false},
		{"ours", append(ours, ours...), false},
		{"another's behind ours", append(ours, other...), true},
		{"cut short", other[:20], false},
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
