package relay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

// loops serve the connections of a server, one loop for each processor.
type loops struct {
	all  []*loop
	next atomic.Uint32
	work sync.WaitGroup
}

func newEngine(s *Server) (engine, error) {
	e := &loops{}
	for range runtime.GOMAXPROCS(0) {
		l, err := newLoop(s)
		if err != nil {
			e.Close()
			return nil, fmt.Errorf("epoll: %w", err)
		}
		e.all = append(e.all, l)
		e.work.Go(l.run)
	}
	return e, nil
}

func (e *loops) resetAll() {
	for _, l := range e.all {
		l.resetAll()
	}
}

func (e *loops) Close() {
	for _, l := range e.all {
		_ = l.file.Close()
	}
	e.work.Wait()
}

// loopListener takes clients for the loops, each in turn.
type loopListener struct {
	loops *loops
	file  *os.File
	raw   syscall.RawConn
}

// listener lets the clients inherit the options of its socket.
func (e *loops) listener(l *net.TCPListener) (listener, error) {
	file, err := l.File() // net's own lets nobody else wait
	if err = errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err == nil {
		failed := raw.Control(func(fd uintptr) { err = setStream(int(fd)) })
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &loopListener{e, file, raw}, nil
}

func (l *loopListener) Close() error { return l.file.Close() }

func (l *loopListener) accept() (client, error) {
	k := &link{}
	var err error
	closed := l.raw.Read(func(socket uintptr) bool {
		k.fds[clientSide], k.choice.client, err = accept(int(socket))
		return err != syscall.EAGAIN
	})
	switch {
	case closed != nil:
		return nil, net.ErrClosed
	case err != nil:
		return nil, os.NewSyscallError("accept4", err)
	}
	k.loop = l.loops.all[l.loops.next.Add(1)%uint32(len(l.loops.all))]
	return k, nil
}
