package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// chunk is the size of the receive buffer: the kernel never sends more at once.
const chunk = 32 << 10

// socket is a netlink socket to netfilter. Receiving waits in the runtime's
// poller, so that a context can end it.
type socket struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
	seq  uint32 // of the last request
}

func dial() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("conntrack: open netlink socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	s := &socket{file: file, buf: make([]byte, chunk)}
	if err := s.prepare(fd); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return s, nil
}

func (s *socket) prepare(fd int) (err error) {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("conntrack: bind netlink socket: %w", err)
	}
	// Errors then come without the request they are about. Kernels before 4.3
	// do not know it; their answers are longer and as good.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	s.raw, err = s.file.SyscallConn()
	return err
}

// next returns the sequence number of the next request.
func (s *socket) next() uint32 {
	s.seq++
	return s.seq
}

func (s *socket) close() error { return s.file.Close() }

// bound makes receive fail with the context's end until the returned function
// is called.
func (s *socket) bound(ctx context.Context) (release func()) {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = s.file.SetReadDeadline(time.Unix(1, 0)) // can fail only when closed, which also ends receive
		close(ended)
	})
	return func() {
		if !stop() {
			<-ended
		}
		_ = s.file.SetReadDeadline(time.Time{})
	}
}

func (s *socket) send(request []byte) error {
	var err error
	if e := s.raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !again(err)
	}); e != nil {
		return e
	}
	return err
}

// receive returns the next messages; they are valid until the next call.
func (s *socket) receive() ([]byte, error) {
	for {
		var n int
		var from unix.Sockaddr
		var err error
		if e := s.raw.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), s.buf, unix.MSG_TRUNC)
			return !again(err)
		}); e != nil {
			return nil, e
		}
		if err != nil {
			return nil, err
		}
		if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != 0 {
			continue // not from the kernel
		}
		if n > len(s.buf) {
			return nil, fmt.Errorf("%w: longer than %d bytes", errMalformed, chunk)
		}
		return s.buf[:n], nil
	}
}

func again(err error) bool { return err == unix.EAGAIN || err == unix.EINTR }
