package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// socket is a netlink socket to nf_tables. All answers are in its queue when a
// request has been sent, as the kernel works on requests in the sender's own
// time; nothing here ever waits for long.
type socket struct {
	fd   int
	seq  uint32
	buf  []byte
	w    writer
	send int // the size of the send buffer
}

// The buffers asked for. The kernel takes memory only for what is in them.
const (
	sendBuffer    = 64 << 20
	receiveBuffer = 8 << 20
)

func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nftables: open netlink socket: %w", absent(err))
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("nftables: bind netlink socket: %w", err)
	}
	// Errors without the message that they are about, but with the place in it.
	for _, option := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK} {
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1) // older kernels: less is said
	}
	s := &socket{fd: fd, seq: uint32(time.Now().Unix()), buf: make([]byte, 1<<16)}
	s.send = s.grow(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, sendBuffer)
	s.grow(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer)
	return s, nil
}

// grow sets a buffer's size, as far as it is allowed, and returns it. Without
// CAP_NET_ADMIN in the first user namespace the system's limit holds.
func (s *socket) grow(force, plain, size int) int {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, size)
	}
	got, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, plain)
	if err != nil {
		return 0
	}
	return got
}

// most is how many bytes can be sent at once: netlink keeps 32 of the buffer.
func (s *socket) most() int { return s.send - 32 }

func (s *socket) close() error { return unix.Close(s.fd) }

// write sends bytes as one message to the kernel.
func (s *socket) write(b []byte) error {
	for {
		_, err := unix.Write(s.fd, b)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errSilent says that the queue is empty.
var errSilent = errors.New("no answer")

// read returns what is next in the queue, valid until the next call.
func (s *socket) read() ([]byte, error) {
	for {
		n, err := unix.Read(s.fd, s.buf)
		switch {
		case err == nil:
			return s.buf[:n], nil
		case errors.Is(err, unix.EAGAIN):
			return nil, errSilent
		case !errors.Is(err, unix.EINTR):
			return nil, err
		}
	}
}

// drain empties the queue after something went wrong, so that the next request
// does not get old answers. It gives up after far more than fits into it.
func (s *socket) drain() {
	for range receiveBuffer / 512 {
		if _, err := s.read(); errors.Is(err, errSilent) {
			return
		}
	}
}

// request asks one thing and hands over the answers; fill writes attributes.
func (s *socket) request(kind int, flags uint16, family byte, fill func(*writer), each func(message)) error {
	s.seq++
	s.w.buf = s.w.buf[:0]
	s.w.begin(kind, flags, s.seq, family)
	if fill != nil {
		fill(&s.w)
	}
	s.w.end()
	if err := s.write(s.w.buf); err != nil {
		return err
	}
	err := s.answers(each, flags&flagDump != 0)
	if err != nil {
		s.drain()
	}
	return err
}

// answers reads up to the end of a dump, or one answer.
func (s *socket) answers(each func(message), dump bool) error {
	interrupted := false
	for {
		buf, err := s.read()
		if err != nil {
			return err
		}
		for m, err := range messages(buf) {
			switch {
			case err != nil:
				return err
			case m.seq != s.seq:
				continue
			}
			interrupted = interrupted || m.flags&flagDumpIntr != 0
			switch m.kind {
			case nlmsgDone, nlmsgError:
				if errno := result(m); errno != 0 {
					return errno
				}
				if interrupted {
					return dataplane.ErrInterrupted
				}
				return nil
			}
			each(m)
			if !dump {
				return nil
			}
		}
	}
}

// result reads the error number of an NLMSG_ERROR or NLMSG_DONE.
func result(m message) unix.Errno {
	if len(m.body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.body)))
}
