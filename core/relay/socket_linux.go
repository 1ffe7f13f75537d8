package relay

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// setStream sets what both sockets of a connection have: no waiting for more
// data, and keep-alive as in keepAlive.
func setStream(fd int) error {
	return errors.Join(
		enable(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY),
		enable(fd, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE),
		set(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, int32(keepIdle/time.Second)),
		set(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, int32(keepInterval/time.Second)),
		set(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, keepCount),
	)
}

// begin starts to connect to an endpoint, and does not wait for that.
func (s *Server) begin(endpoint netip.AddrPort) (fd int, err error) {
	if err := s.foreign(model.TCP, endpoint); err != nil {
		return -1, err
	}
	family := syscall.AF_INET6
	if endpoint = plain(endpoint); endpoint.Addr().Is4() {
		family = syscall.AF_INET
	}
	fd, err = syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, syscall.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = errors.Join(setStream(fd), setMark(fd, s.options.Mark))
	if err == nil {
		err = connect(fd, endpoint)
	}
	if err != nil && err != syscall.EINPROGRESS {
		hangUp(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}

// abort closes a socket in a way that tells the other end it failed.
func abort(fd int) {
	abrupt(fd)
	hangUp(fd)
}

// abrupt makes the end of a socket, whenever it comes, tell that it failed.
func abrupt(fd int) {
	_ = syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}
