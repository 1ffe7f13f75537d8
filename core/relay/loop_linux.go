// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

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

	mu       sync.Mutex
	handlers map[int32]handler // by the number in their events
	last     int32
}

// readSize is as much of a stream as a loop reads at once.
const readSize = 64 << 10

// handler serves the events of a connection's two sockets.
type handler interface {
	connection
	ready(at side, events uint32)
}

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
	l := &loop{epoll: fd, file: os.NewFile(uintptr(fd), "epoll"), handlers: map[int32]handler{}}
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
			h := l.handlers[e.Fd]
			l.mu.Unlock()
			if h != nil { // else it has been removed since
				h.ready(side(e.Pad), e.Events)
			}
		}
		if n < len(l.events) && err != syscall.EINTR {
			return
		}
	}
}

// add registers a connection and returns its number.
func (l *loop) add(h handler) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.last++; l.last == 0 || l.handlers[l.last] != nil; l.last++ {
	} // there are 4 billion
	l.handlers[l.last] = h
	return l.last
}

func (l *loop) remove(number int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.handlers, number)
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
	all := make([]connection, 0, len(l.handlers))
	for _, h := range l.handlers {
		all = append(all, h)
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

var _ handler = (*link)(nil)

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
	k.to.connected(time.Now())
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
		k.options.Log.Warn("connection reset: taking it over from epoll failed", "port", k.by.port, "err", err, "failed", k.stats.failed.Load())
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
