// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/platform"
)

var errDead = errors.New("the process has ended")

// process is one process of the proxy. What it does after its end has no effect.
type process struct {
	cancel context.CancelFunc
	proxy  *platform.Proxy

	mu     sync.Mutex
	fuse   int // number of writes until it is killed; -1 is never
	dead   bool
	burned bool // it died of that
	died   func()
}

// step is called before every write and reports whether the process may do it.
func (p *process) step() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return false
	}
	if p.fuse == 0 {
		p.dead, p.burned = true, true
		p.died()
		p.cancel()
		return false
	}
	if p.fuse > 0 {
		p.fuse--
	}
	return true
}

// alive reports whether what the process does has an effect.
func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead
}

// kill ends the process after so many more writes.
func (p *process) kill(writes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fuse < 0 {
		p.fuse = writes
	}
}

// supervisor starts one process after the other, as systemd does.
type supervisor struct {
	run *run

	mu      sync.Mutex
	now     *process // nil while none runs
	starts  int
	crashes int
	done    chan struct{}
}

// restartPause is systemd's RestartSec of the unit.
const restartPause = time.Second

func (s *supervisor) loop(ctx context.Context) {
	defer close(s.done)
	for ctx.Err() == nil {
		s.one(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(restartPause):
		}
	}
}

// one runs one process to its end.
func (s *supervisor) one(ctx context.Context) {
	r := s.run
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &process{cancel: cancel, fuse: -1}
	p.died = r.plane.killed
	r.plane.begin(p)
	for _, other := range r.others {
		other.begin(p)
	}
	machine := r.machine
	proxy, err := machine.Open(ctx, &r.config, "simulation", r.log)
	if err != nil {
		r.logf("start failed: %v", err)
		return
	}
	p.proxy = proxy
	s.mu.Lock()
	s.now = p
	s.starts++
	s.mu.Unlock()
	if err := proxy.Run(ctx); err != nil && p.alive() && ctx.Err() == nil {
		r.violate("process ended: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = nil
	if p.burned {
		s.crashes++
	}
}

// current returns the process that runs, if one does.
func (s *supervisor) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// lock is the lock of a machine: one process at a time has it.
type lock struct {
	mu   sync.Mutex
	held bool
}

func (l *lock) take() (io.Closer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		return closer(func() {}), errors.New("another tandem runs")
	}
	l.held = true
	return closer(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held = false
	}), nil
}

type closer func()

func (c closer) Close() error {
	c()
	return nil
}

// control returns what opens the control socket.
func control(n *network) func() (net.Listener, error) {
	return func() (net.Listener, error) { return n.listen(context.Background(), "unix", "127.0.0.2:1") }
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
