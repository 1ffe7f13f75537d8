// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// The system calls here never block and bypass the scheduler's hooks
// (RawSyscall). With the hooks, a call of more than some 20 µs, as long as it may
// take to wake up the other end of a connection, loses its processor to another
// thread: at thousands of connections a second that took a quarter of the CPU time.

// zeroCopy reports whether net.TCPConn.ReadFrom moves data within the kernel: it
// splices.
const zeroCopy = true

// maxDescriptors is the limit of this process, which Go raises as far as it may at
// the start; 0 if unknown.
func maxDescriptors() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return int(min(l.Cur, 1<<30))
}

// isListening reports whether a socket listens: if it is known not to, others have ended
// that.
func isListening(l listener) bool {
	raw, err := l.SyscallConn()
	listens := 1
	if err == nil {
		_ = raw.Control(func(fd uintptr) { // fails where it is closed, which is our own doing
			if n, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err == nil {
				listens = n
			}
		})
	}
	return listens != 0
}

// rawCall makes a system call with a buffer, again after EINTR.
func rawCall(number uintptr, fd int, p unsafe.Pointer, n uintptr) (int, error) {
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
	return rawCall(syscall.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

func writeSocket(fd int, b []byte) (int, error) {
	return rawCall(syscall.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

// shutdownWrite sends a FIN.
func shutdownWrite(fd int) error {
	_, _, e := syscall.RawSyscall(syscall.SYS_SHUTDOWN, uintptr(fd), syscall.SHUT_WR, 0)
	return asError(e)
}

func closeSocket(fd int) { _, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0) }

// resetSocket closes a socket with a reset.
func resetSocket(fd int) {
	setLingerReset(fd)
	closeSocket(fd)
}

// setLingerReset makes a later close of a socket a reset.
func setLingerReset(fd int) {
	_ = syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
}

// acceptSocket takes a client from a listener's queue; EAGAIN if there is none.
func acceptSocket(listener int) (fd int, from netip.AddrPort, err error) {
	const flags = syscall.SOCK_NONBLOCK | syscall.SOCK_CLOEXEC
	var peer syscall.RawSockaddrInet6 // has room for IPv4, too
	size := uint32(unsafe.Sizeof(peer))
	n, _, e := syscall.RawSyscall6(syscall.SYS_ACCEPT4, uintptr(listener),
		uintptr(unsafe.Pointer(&peer)), uintptr(unsafe.Pointer(&size)), flags, 0, 0)
	if e != 0 {
		return -1, from, e
	}
	addr := netip.AddrFrom16(peer.Addr).Unmap()
	if peer.Family == syscall.AF_INET {
		addr = netip.AddrFrom4((*syscall.RawSockaddrInet4)(unsafe.Pointer(&peer)).Addr)
	}
	port := (*[2]byte)(unsafe.Pointer(&peer.Port)) // in network order, at the same place in both
	return int(n), netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port[:])), nil
}

// startConnect opens a socket and starts to connect it, without waiting.
func startConnect(to netip.AddrPort, mark uint32) (fd int, err error) {
	family := syscall.AF_INET6
	if to = unmapped(to); to.Addr().Is4() {
		family = syscall.AF_INET
	}
	fd, err = syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, syscall.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = errors.Join(setStreamOptions(fd), setMark(fd, mark))
	if err == nil {
		err = connectSocket(fd, to)
	}
	if err != nil && err != syscall.EINPROGRESS {
		closeSocket(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}

// connectSocket starts to connect; EINPROGRESS is the ordinary result.
func connectSocket(fd int, to netip.AddrPort) error {
	var port uint16 // in network byte order
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&port))[:], to.Port())
	if to.Addr().Is4() {
		a := syscall.RawSockaddrInet4{Family: syscall.AF_INET, Port: port, Addr: to.Addr().As4()}
		_, err := rawCall(syscall.SYS_CONNECT, fd, unsafe.Pointer(&a), unsafe.Sizeof(a))
		return err
	}
	a := syscall.RawSockaddrInet6{Family: syscall.AF_INET6, Port: port, Addr: to.Addr().As16()}
	_, err := rawCall(syscall.SYS_CONNECT, fd, unsafe.Pointer(&a), unsafe.Sizeof(a))
	return err
}

// setStreamOptions sets what both sockets of a connection have: TCP_NODELAY, and
// keep-alive as in keepAlive.
func setStreamOptions(fd int) error {
	return errors.Join(
		setOption(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1),
		setOption(fd, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1),
		setOption(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, int32(keepIdle/time.Second)),
		setOption(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, int32(keepInterval/time.Second)),
		setOption(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, keepCount),
	)
}

// setMark sets the fwmark of all packets of a socket; 0 is none.
func setMark(fd int, mark uint32) error {
	if mark == 0 {
		return nil
	}
	return os.NewSyscallError("setsockopt SO_MARK", setOption(fd, syscall.SOL_SOCKET, syscall.SO_MARK, int32(mark)))
}

func setOption(fd, level, option int, value int32) error {
	_, _, e := syscall.RawSyscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value)), unsafe.Sizeof(value), 0)
	return asError(e)
}

// silence returns how long no packet with data has been sent or received on a connection:
// data waiting in the socket's buffer for a slow reader counts when
// it is sent, as in conntrack. Keep-alive does not count.
func silence(c *net.TCPConn) (d time.Duration, known bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) { d, known = socketSilence(int(fd)) })
	return d, known && err == nil
}

// socketSilence is silence for a descriptor.
func socketSilence(fd int) (d time.Duration, known bool) {
	var info syscall.TCPInfo
	size := uint32(unsafe.Sizeof(info))
	_, _, e := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	return time.Duration(min(info.Last_data_sent, info.Last_data_recv)) * time.Millisecond, e == 0
}

func epollAdd(epoll, fd int, event syscall.EpollEvent) error {
	_, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_CTL, uintptr(epoll), syscall.EPOLL_CTL_ADD, uintptr(fd),
		uintptr(unsafe.Pointer(&event)), 0, 0)
	return asError(e)
}

// epollReady returns the events that are there already.
func epollReady(epoll int, events []syscall.EpollEvent) (int, error) {
	n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(epoll),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

func asError(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// socketError returns why a socket has failed, once; nil for no error.
func socketError(fd int) error {
	code, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ERROR)
	if err != nil || code == 0 {
		return err
	}
	return syscall.Errno(code)
}

// pooledDatagrams reports whether UDP sessions take their buffers from a pool.
const pooledDatagrams = true

func systemReaders() (stream, datagrams newReader) { return newPooledReader, newPooledReader }

// pooledReader has no buffer of its own: it takes one of the pool when there is
// something to read, so that an idle connection holds none.
type pooledReader struct {
	raw  syscall.RawConn
	pool *sync.Pool            // of *[]byte
	try  func(fd uintptr) bool // r.read, bound once
	data *[]byte               // after a read without error
	n    int
	err  error
}

func newPooledReader(c net.Conn, pool *sync.Pool) (reader, error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &pooledReader{raw: raw, pool: pool}
	r.try = r.read
	return r, nil
}

// read tries to read. It returns false to be called again when there is data.
func (r *pooledReader) read(fd uintptr) bool {
	data := r.pool.Get().(*[]byte)
	for {
		r.n, r.err = syscall.Read(int(fd), *data)
		if r.err != syscall.EINTR {
			break
		}
	}
	if r.err != nil {
		r.pool.Put(data)
		return r.err != syscall.EAGAIN
	}
	r.data = data
	return true
}

func (r *pooledReader) next() ([]byte, error) {
	err := r.raw.Read(r.try)
	if err == nil {
		err = r.err
	}
	if err != nil {
		return nil, err
	}
	if r.n == 0 {
		err = io.EOF
	}
	return (*r.data)[:r.n], err
}

func (r *pooledReader) done() {
	if r.data != nil {
		r.pool.Put(r.data)
		r.data = nil
	}
}
