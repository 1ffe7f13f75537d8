// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"os"
	"sync"
	"syscall"
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
