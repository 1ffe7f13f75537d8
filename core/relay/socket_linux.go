package relay

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
)

// setStream sets what both sockets of a connection have: no waiting for more
// data, and keepAlive.
func setStream(fd int) error {
	return errors.Join(
		syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1),
		syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1),
	)
}

// begin starts to connect to an endpoint, and does not wait for that.
func begin(endpoint netip.AddrPort) (fd int, err error) {
	family, to := sockaddr(endpoint)
	fd, err = syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, syscall.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = setStream(fd)
	if err == nil {
		err = syscall.Connect(fd, to)
	}
	if err != nil && err != syscall.EINPROGRESS {
		_ = syscall.Close(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) (family int, s syscall.Sockaddr) {
	if ip := a.Addr().Unmap(); ip.Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: int(a.Port()), Addr: ip.As4()}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrOf(s syscall.Sockaddr) netip.Addr {
	switch s := s.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrFrom4(s.Addr)
	case *syscall.SockaddrInet6:
		return netip.AddrFrom16(s.Addr).Unmap()
	}
	return netip.Addr{}
}

// hangUp closes a socket that has ended.
func hangUp(fd int) { _ = syscall.Close(fd) }

// abort closes a socket in a way that tells the other end it failed.
func abort(fd int) {
	abrupt(fd)
	_ = syscall.Close(fd)
}

// abrupt makes the end of a socket, whenever it comes, tell that it failed.
func abrupt(fd int) {
	_ = syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}
