// SPDX-License-Identifier: Apache-2.0

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

// open implements engine.
func (e *loops) open() (all []connection) {
	for _, l := range e.all {
		all = append(all, l.open()...)
	}
	return all
}

// Close implements engine.
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
