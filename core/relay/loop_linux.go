package relay

import (
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
)

// loop serves connections as long as that takes no waiting. What does, goroutines
// get: the retry of an endpoint, a stream that the other side has no room for, and
// one that does not stop.
//
// It waits for its epoll descriptor as for any file, in the runtime's poller. So
// it is one more goroutine, and keeps no thread from the others.
type loop struct {
	server *Server
	epoll  int
	file   *os.File // the same
	raw    syscall.RawConn
	events [128]syscall.EpollEvent
	data   [gulp]byte // read and written in one go

	mu    sync.Mutex
	links map[int32]*link // by the number in their events
	last  int32
}

const (
	// gulp is as much of a stream as a loop reads at once.
	gulp = 64 << 10
	// gulps are as many as it takes without a pause: more is worth a splice(2).
	gulps = 4
)

func newLoop(s *Server) (*loop, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	_ = syscall.SetNonblock(fd, true) // what os.NewFile goes by
	l := &loop{server: s, epoll: fd, file: os.NewFile(uintptr(fd), "epoll"), links: map[int32]*link{}}
	l.raw, err = l.file.SyscallConn()
	return l, err
}

// run serves until epoll is closed.
func (l *loop) run() {
	_ = l.raw.Read(func(uintptr) bool {
		l.turn()
		return false // wait for more
	})
}

// turn serves all that is ready.
func (l *loop) turn() {
	for {
		n, err := epollReady(l.epoll, l.events[:])
		for _, e := range l.events[:n] {
			l.mu.Lock()
			k := l.links[e.Fd]
			l.mu.Unlock()
			if k != nil { // else it has ended since
				k.ready(side(e.Pad), e.Events)
			}
		}
		if n < len(l.events) && err != syscall.EINTR {
			return
		}
	}
}

// add makes room for a connection. It is false at the server's end.
func (l *loop) add(k *link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.last++; l.last == 0 || l.links[l.last] != nil; l.last++ {
	} // there are 4 billion
	k.number = l.last
	l.links[k.number] = k
	return l.server.ctx.Err() == nil
}

func (l *loop) remove(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.links, k.number)
}

// edges are what a loop hears of a socket, once each time it comes to be.
const edges = syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | syscall.EPOLLPRI | 1<<31 // EPOLLET

// watch has the loop hear of one of a connection's sockets.
func (l *loop) watch(k *link, of side) error {
	e := syscall.EpollEvent{Events: edges, Fd: k.number, Pad: int32(of)}
	return os.NewSyscallError("epoll_ctl", epollAdd(l.epoll, k.fds[of], e))
}

// ignore is its end, for a socket that is not closed then.
func (l *loop) ignore(fd int) { _ = syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_DEL, fd, nil) }

func (l *loop) resetAll() {
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.links))
	l.mu.Unlock()
	for _, k := range all {
		k.cut()
	}
}
