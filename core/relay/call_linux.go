package relay

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"
)

// The system calls here never wait, and do not tell the runtime that they might.
// One that might loses its processor to another thread after some 20 µs, as long
// as it may take to wake up the other end of a connection, and has the runtime
// watch for that. With thousands of connections a second, a quarter of the
// processor time went into threads that started and stopped for it.

// call makes a system call with some memory; a signal does not end it.
func call(number uintptr, fd int, p unsafe.Pointer, n uintptr) (int, error) {
	for {
		r, _, e := syscall.RawSyscall(number, uintptr(fd), uintptr(p), n)
		switch e {
		case 0:
			return int(r), nil
		case syscall.EINTR:
		default:
			return 0, e
		}
	}
}

func readSocket(fd int, b []byte) (int, error) {
	return call(syscall.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

func writeSocket(fd int, b []byte) (int, error) {
	return call(syscall.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

// endWrites tells the other end that nothing more will come.
func endWrites(fd int) error {
	_, _, e := syscall.RawSyscall(syscall.SYS_SHUTDOWN, uintptr(fd), syscall.SHUT_WR, 0)
	return failure(e)
}

// hangUp closes a socket.
func hangUp(fd int) { _, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0) }

// accept takes a client, if there is one.
func accept(listener int) (fd int, from netip.Addr, err error) {
	const flags = syscall.SOCK_NONBLOCK | syscall.SOCK_CLOEXEC
	var peer syscall.RawSockaddrInet6 // has room for IPv4, too
	size := uint32(unsafe.Sizeof(peer))
	n, _, e := syscall.RawSyscall6(syscall.SYS_ACCEPT4, uintptr(listener),
		uintptr(unsafe.Pointer(&peer)), uintptr(unsafe.Pointer(&size)), flags, 0, 0)
	if e != 0 {
		return -1, from, e
	}
	if peer.Family == syscall.AF_INET {
		from = netip.AddrFrom4((*syscall.RawSockaddrInet4)(unsafe.Pointer(&peer)).Addr)
	} else {
		from = netip.AddrFrom16(peer.Addr).Unmap()
	}
	return int(n), from, nil
}

// connect begins to connect; EINPROGRESS says so.
func connect(fd int, to netip.AddrPort) error {
	var port uint16 // in the order of the network
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&port))[:], to.Port())
	if to.Addr().Is4() {
		a := syscall.RawSockaddrInet4{Family: syscall.AF_INET, Port: port, Addr: to.Addr().As4()}
		_, err := call(syscall.SYS_CONNECT, fd, unsafe.Pointer(&a), unsafe.Sizeof(a))
		return err
	}
	a := syscall.RawSockaddrInet6{Family: syscall.AF_INET6, Port: port, Addr: to.Addr().As16()}
	_, err := call(syscall.SYS_CONNECT, fd, unsafe.Pointer(&a), unsafe.Sizeof(a))
	return err
}

// enable switches a socket's option on.
func enable(fd, level, option int) error { return set(fd, level, option, 1) }

// set sets a socket's option.
func set(fd, level, option int, value int32) error {
	_, _, e := syscall.RawSyscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0)
	return failure(e)
}

func epollAdd(epoll, fd int, event syscall.EpollEvent) error {
	_, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_CTL, uintptr(epoll), syscall.EPOLL_CTL_ADD, uintptr(fd),
		uintptr(unsafe.Pointer(&event)), 0, 0)
	return failure(e)
}

// epollReady tells what is ready by now.
func epollReady(epoll int, events []syscall.EpollEvent) (int, error) {
	n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(epoll),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

func failure(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
