// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// refusing returns a socket to a kernel that answers its next request with an
// error.
func refusing(t *testing.T, errno unix.Errno) *netlink.Socket {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(unix.Close(pair[0]), unix.Close(pair[1])) })
	answer := make([]byte, 36)
	binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
	binary.NativeEndian.PutUint16(answer[4:], netlink.TypeError)
	binary.NativeEndian.PutUint32(answer[8:], 1) // the first request's number
	binary.NativeEndian.PutUint32(answer[16:], -uint32(errno))
	if _, err := unix.Write(pair[1], answer); err != nil {
		t.Fatal(err)
	}
	return netlink.NewSocket(pair[0])
}

// A kernel without nf_tables has nothing of ours, and the error states what to do;
// any other failure says nothing of the kind.
func TestAbsent(t *testing.T) {
	for errno, want := range map[unix.Errno]bool{
		unix.EINVAL: true, unix.EPROTONOSUPPORT: true, unix.EAFNOSUPPORT: true,
		unix.EPERM: false, unix.ENOMEM: false, unix.ENOBUFS: false,
	} {
		d := &Driver{table: NewTable("tandem", Owner, Owner)}
		_, err := d.look(t.Context(), refusing(t, errno), model.IPv4, nil)
		if !errors.Is(err, errno) || errors.Is(err, dataplane.ErrAbsent) != want {
			t.Errorf("%v: %v", errno, err)
		}
		if advised := strings.Contains(Advise(err).Error(), "modprobe nf_tables"); advised != want {
			t.Errorf("%v: %v", errno, Advise(err))
		}
	}
}
