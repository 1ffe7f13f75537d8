package host

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Hear opens a socket that is told of changes of routing netlink groups, in the
// network namespace of the calling thread. Reading it never blocks.
func Hear(groups uint32) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// Heard empties a socket of Hear for addresses and reports whether it told of one
// on a device that is not to be skipped. Where it had more to tell than it can keep the
// answer is yes.
func Heard(fd int, skip func(device int) bool) (news bool) {
	buf := make([]byte, 16<<10)
	for range 1024 {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return news
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			news = true
			continue
		case err != nil:
			return true
		}
		news = news || tellsOfOther(buf[:n], skip)
	}
	return true // and the rest is heard next time
}

// tellsOfOther reports whether messages are about an address on another device.
// They begin with nlmsghdr and ifaddrmsg, whose last field is the device.
func tellsOfOther(b []byte, skip func(device int) bool) bool {
	const header, index = unix.SizeofNlMsghdr, 4
	for len(b) >= header+unix.SizeofIfAddrmsg {
		if !skip(int(int32(binary.NativeEndian.Uint32(b[header+index:])))) {
			return true
		}
		size := (int(binary.NativeEndian.Uint32(b)) + 3) &^ 3
		if size < header || size > len(b) {
			return false
		}
		b = b[size:]
	}
	return false
}
