// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// loop serves connections by epoll while they do not have to wait. It waits for its
// epoll descriptor in the runtime's poller, so it is an ordinary goroutine and does
// not block a thread.
type loop struct {
	epoll  int
	file   *os.File // the same
	raw    syscall.RawConn
	events [128]syscall.EpollEvent
	data   [readSize]byte // read and written without a pause

	mu    sync.Mutex
	links map[int32]*link // by the number in their events
	last  int32
}

// readSize is as much of a stream as a loop reads at once.
const readSize = 64 << 10

// side is one of the two sockets of a connection.
type side int32

const (
	clientSide side = iota
	endpointSide
)

func (s side) other() side { return 1 - s }

func newLoop() (*loop, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	_ = syscall.SetNonblock(fd, true) // else os.NewFile would not use the poller
	l := &loop{epoll: fd, file: os.NewFile(uintptr(fd), "epoll"), links: map[int32]*link{}}
	l.raw, err = l.file.SyscallConn()
	return l, err
}

// run serves until the epoll descriptor is closed.
func (l *loop) run() {
	_ = l.raw.Read(func(uintptr) bool {
		l.serve()
		return false // wait for more
	})
}

// serve handles all events that are there.
func (l *loop) serve() {
	for {
		n, err := epollReady(l.epoll, l.events[:])
		for _, e := range l.events[:n] {
			l.mu.Lock()
			k := l.links[e.Fd]
			l.mu.Unlock()
			if k != nil { // else it has been removed since
				k.ready(side(e.Pad), e.Events)
			}
		}
		if n < len(l.events) && err != syscall.EINTR {
			return
		}
	}
}

// add registers a connection and returns its number.
func (l *loop) add(k *link) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.last++; l.last == 0 || l.links[l.last] != nil; l.last++ {
	} // there are 4 billion
	l.links[l.last] = k
	return l.last
}

func (l *loop) remove(number int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.links, number)
}

// edges are the events of a socket, edge-triggered.
const edges = syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | syscall.EPOLLPRI | 1<<31 // EPOLLET

// watch starts events for one of a connection's sockets.
func (l *loop) watch(number int32, of side, fd int) error {
	e := syscall.EpollEvent{Events: edges, Fd: number, Pad: int32(of)}
	return os.NewSyscallError("epoll_ctl", epollAdd(l.epoll, fd, e))
}

// ignore ends events for a socket that stays open.
func (l *loop) ignore(fd int) { _ = syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_DEL, fd, nil) }

// open returns all connections.
func (l *loop) open() []connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]connection, 0, len(l.links))
	for _, k := range l.links {
		all = append(all, k)
	}
	return all
}

// link is a connection that a loop serves: a client's and the one to its endpoint. It
// hands over to goroutines whatever has to wait: a retry with another endpoint, a
// stream whose receiver is full, and one that does not pause. It is safe for
// concurrent use.
type link struct {
	*shared
	loop   *loop
	number int32 // 0 before it is registered with the loop

	mu      sync.Mutex
	state   linkState
	fds     [2]int  // by side
	ended   [2]bool // by side: it has sent its end
	to      choice
	by      *share
	timeout *time.Timer // of the first try
}

type linkState uint8

const (
	connecting linkState = iota
	transferring
	closed
)

// maxFullReads is how many reads that fill the buffer a loop makes in a row: a
// longer stream is worth a splice(2).
const maxFullReads = 4

var _ client = (*link)(nil)

func (k *link) from() netip.AddrPort { return k.to.client }

// serve implements client: it tries the first endpoint.
func (k *link) serve(to choice, by *share) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.to, k.by = to, by
	err := k.checkLoop(model.TCP, to.endpoint())
	if err == nil {
		k.fds[endpointSide], err = startConnect(to.endpoint(), k.options.Mark)
	}
	if err != nil {
		k.handOverDial(0) // which will fail again there and be handled
		return
	}
	k.timeout = time.AfterFunc(dialTimeouts[0], k.timedOut)
	k.number = k.loop.add(k)
	if k.ctx.Err() != nil || k.loop.watch(k.number, endpointSide, k.fds[endpointSide]) != nil {
		k.close(resetSocket)
	}
}

// timedOut ends the first try.
func (k *link) timedOut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state == connecting {
		k.attempts.note(&k.to, false)
		k.failed()
	}
}

// failed leaves the other tries to a goroutine.
func (k *link) failed() {
	closeSocket(k.fds[endpointSide])
	k.retry(&k.to)
	k.handOverDial(1)
}

var _ connection = (*link)(nil)

// ready serves the events of one of its two sockets.
func (k *link) ready(at side, events uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	failed := events&(syscall.EPOLLERR|syscall.EPOLLHUP) != 0
	if k.state == connecting {
		switch {
		case failed:
			k.noteFailed(&k.to, socketError(k.fds[endpointSide]))
			k.failed()
		case events&syscall.EPOLLOUT != 0:
			k.connected() // and the endpoint may have sent data
		}
	}
	if failed || events&syscall.EPOLLIN != 0 && !k.ended[at] {
		k.read(at, failed || events&(syscall.EPOLLRDHUP|syscall.EPOLLPRI) != 0)
	}
}

// connected begins to transfer.
func (k *link) connected() {
	k.timeout.Stop()
	k.reached(&k.to)
	k.attempts.note(&k.to, true)
	k.timeout, k.to = nil, choice{}
	k.state = transferring
	k.stats.open.Add(1)
	if k.loop.watch(k.number, clientSide, k.fds[clientSide]) != nil {
		k.close(resetSocket)
	}
}

// read passes on the data that one side sends. A read that does not fill the buffer
// has usually taken everything; more may be the end of the stream, or data behind
// urgent data. An error ends both sides.
func (k *link) read(from side, more bool) {
	for full := 0; k.state == transferring; {
		n, err := readSocket(k.fds[from], k.loop.data[:])
		switch {
		case err == syscall.EAGAIN:
			return
		case err != nil:
			k.close(resetSocket)
		case n == 0:
			k.endOf(from)
			return
		default:
			k.write(from, k.loop.data[:n])
		}
		if n == readSize {
			full++
		} else if !more {
			return
		}
		if full == maxFullReads && k.state == transferring {
			k.handOver(from, nil)
		}
	}
}

// write passes on data of one side. If the other side is full, the connection is
// handed over to goroutines.
func (k *link) write(from side, data []byte) {
	n, err := writeSocket(k.fds[from.other()], data)
	switch {
	case err != nil && err != syscall.EAGAIN:
		k.close(resetSocket)
	case n < len(data):
		k.handOver(from, data[n:])
	}
}

// endOf passes on the end of a side. The second end closes both.
func (k *link) endOf(from side) {
	k.ended[from] = true
	if k.ended[from.other()] {
		k.close(closeSocket)
		return
	}
	if shutdownWrite(k.fds[from.other()]) != nil {
		k.close(resetSocket)
	}
}

var _ connection = (*link)(nil)

func (k *link) share() *share { return k.by }

func (k *link) activity(time.Time) (idle time.Duration, halfClosed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != transferring {
		return 0, false
	}
	client, known := socketSilence(k.fds[clientSide])
	endpoint, also := socketSilence(k.fds[endpointSide])
	if !known || !also {
		return 0, false
	}
	return min(client, endpoint), k.ended[clientSide] || k.ended[endpointSide]
}

// reset implements connection, and client before serve.
func (k *link) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.by == nil:
		resetSocket(k.fds[clientSide])
	case k.state != closed:
		k.close(resetSocket)
	}
}

// close closes both sides in some way.
func (k *link) close(closeSide func(fd int)) {
	for _, fd := range k.fds {
		closeSide(fd)
	}
	k.release()
	k.dismiss(k.by)
}

// release ends the loop's part in the connection.
func (k *link) release() {
	if k.timeout != nil {
		k.timeout.Stop()
	}
	if k.state == transferring {
		k.stats.open.Add(-1)
	}
	k.state = closed
	if k.number != 0 {
		k.loop.remove(k.number)
	}
}

// handOverDial hands all but the first tries to reach an endpoint to a goroutine.
func (k *link) handOverDial(tries int) {
	fd, to := k.fds[clientSide], k.to
	k.release()
	k.work.Go(func() {
		client, err := k.asConn(fd)
		if err != nil {
			k.lost(err)
			return
		}
		k.newConn(client, k.by).dialAndTransfer(to, tries)
	})
}

// handOver hands both directions to goroutines, with data that a side has sent.
func (k *link) handOver(from side, unwritten []byte) {
	fds := k.fds
	for _, fd := range fds {
		k.loop.ignore(fd) // epoll knows it by the socket, which stays open
	}
	var data [2][]byte
	data[from] = slices.Clone(unwritten)
	k.release()
	k.work.Go(func() {
		client, err := k.asConn(fds[clientSide])
		up, upErr := k.asConn(fds[endpointSide])
		if err = errors.Join(err, upErr); err != nil {
			for _, c := range []*net.TCPConn{client, up} {
				if c != nil {
					reset(c)
				}
			}
			k.lost(err)
			return
		}
		k.newConn(client, k.by).transfer(up, data[clientSide], data[endpointSide])
	})
}

// lostEvery is how often connections that could not be handed over are logged: without
// descriptors it happens to each.
const lostEvery = 10 * time.Second

// lost ends a connection that could not be handed over.
func (k *link) lost(err error) {
	k.stats.failed.Add(1)
	now := time.Now()
	if last := k.lostAt.Load(); last == nil || now.Sub(*last) >= lostEvery {
		k.lostAt.Store(&now)
		k.options.Log.Warn("connection reset: hand-off from epoll failed", "port", k.by.port, "err", err, "failed", k.stats.failed.Load())
	}
	k.dismiss(k.by)
}

// asConn converts a socket to one of package net. It gets another descriptor; this
// one is closed, and after an error the connection is reset.
func (s *shared) asConn(fd int) (*net.TCPConn, error) {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	for backoffs := 0; ; backoffs++ {
		c, err := fileConn(f, fd)
		if err == nil {
			return c, nil
		}
		if !isExhausted(err) || backoffs == maxBackoffs || s.ctx.Err() != nil {
			setLingerReset(fd)
			return nil, err
		}
		s.exhausted()
		sleep.For(s.ctx, backoffTime)
	}
}

// fileConn restores the keep-alive options, which net.FileConn changes.
func fileConn(f *os.File, fd int) (*net.TCPConn, error) {
	options := [...]int{syscall.TCP_KEEPIDLE, syscall.TCP_KEEPINTVL, syscall.TCP_KEEPCNT}
	var before [len(options)]int
	for i, o := range options {
		before[i], _ = syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, o)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	for i, o := range options {
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, o, before[i])
	}
	return c.(*net.TCPConn), nil
}

// loops are the engine of Linux: one loop for each processor.
type loops struct {
	*shared
	all  []*loop
	next atomic.Uint32
	work sync.WaitGroup
}

func newEngine(s *shared) (engine, error) {
	e := &loops{shared: s}
	for range runtime.GOMAXPROCS(0) {
		l, err := newLoop()
		if err != nil {
			e.Close()
			return nil, fmt.Errorf("epoll: %w", err)
		}
		e.all = append(e.all, l)
		e.work.Go(l.run)
	}
	return e, nil
}

var _ engine = (*loops)(nil)

func (e *loops) open() (all []connection) {
	for _, l := range e.all {
		all = append(all, l.open()...)
	}
	return all
}

func (e *loops) Close() {
	for _, l := range e.all {
		_ = l.file.Close()
	}
	e.work.Wait()
}

// loopListener accepts clients for the loops, for each in turn.
type loopListener struct {
	loops *loops
	file  *os.File
	raw   syscall.RawConn
}

// listener implements engine. Clients inherit the options of the socket.
func (e *loops) listener(l *net.TCPListener) (listener, error) {
	file, err := l.File() // net.TCPListener lets no other code wait for it
	if err = errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(fd uintptr) { err = setStreamOptions(int(fd)) })
		err = errors.Join(err, controlErr)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &loopListener{e, file, raw}, nil
}

func (l *loopListener) Close() error { return l.file.Close() }

func (l *loopListener) SyscallConn() (syscall.RawConn, error) { return l.raw, nil }

func (l *loopListener) accept() (client, error) {
	k := &link{shared: l.loops.shared}
	var err error
	closedErr := l.raw.Read(func(socket uintptr) bool {
		k.fds[clientSide], k.to.client, err = acceptSocket(int(socket))
		return err != syscall.EAGAIN
	})
	switch {
	case closedErr != nil:
		return nil, net.ErrClosed
	case err != nil:
		return nil, os.NewSyscallError("accept4", err)
	}
	k.loop = l.loops.all[l.loops.next.Add(1)%uint32(len(l.loops.all))]
	return k, nil
}

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

// datagrams returns what waits until there is a datagram to read, or an error.
func datagrams(c *net.UDPConn) (await func() error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return func() error { return err }
	}
	look := func(fd uintptr) bool {
		_, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, 0, 0, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
		return e != syscall.EAGAIN // what else there is the read says
	}
	return func() error { return raw.Read(look) }
}

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
