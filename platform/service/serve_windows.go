package service

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"golang.org/x/sys/windows/svc"
)

const (
	checkpoint = time.Second      // how often the service manager is told that something goes on
	patience   = 5 * time.Second  // how long it shall wait for the next checkpoint
	starting   = 20 * time.Second // after which the service counts as started: the API server may be down
	stopping   = 20 * time.Second // after which a stop that hangs is ended
)

// The service's own exit codes; 0 is a stop that was asked for.
const (
	exitFailed = 1 // work returned an error
	exitHung   = 2 // work did not end when it was told to
)

// Serve runs work as the service that the service manager has started this
// process for, and returns when it is over. Work ends with its context, and says
// when it is ready; until then, but not for ever, the service is starting.
func Serve(log *slog.Logger, work func(ctx context.Context, ready func()) error) error {
	h := &handler{log: log, work: work}
	if err := svc.Run(Name, h); err != nil {
		return fmt.Errorf("talk to the service manager: %w; --windows-service is only for what it has started", err)
	}
	return h.err
}

// handler talks to the service manager (svc.Handler).
type handler struct {
	log  *slog.Logger
	work func(ctx context.Context, ready func()) error
	err  error
}

const accepted = svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown

// Execute implements svc.Handler.
func (h *handler) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (own bool, code uint32) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- h.work(ctx, func() {
			select {
			case ready <- struct{}{}:
			default:
			}
		})
	}()
	p := progress{status: status, state: svc.StartPending}
	p.tell()
	tick := time.NewTicker(checkpoint)
	defer tick.Stop()
	begun := time.Now()
	for {
		select {
		case h.err = <-done:
			return h.ended(p.state == svc.StopPending)
		case <-ready:
			p.become(svc.Running)
		case r := <-requests:
			if h.asked(r, status) {
				cancel()
				p.become(svc.StopPending)
				begun = time.Now()
			}
		case <-tick.C:
			switch {
			case p.state == svc.StartPending && time.Since(begun) > starting:
				h.log.Warn("not ready yet, going on", "after", starting)
				p.become(svc.Running)
			case p.state == svc.StopPending && time.Since(begun) > stopping:
				h.log.Error("the stop hangs and is ended by force", "after", stopping, "goroutines", stacks())
				return true, exitHung
			}
			p.tell()
		}
	}
}

// asked answers a request, and reports whether it is to stop.
func (h *handler) asked(r svc.ChangeRequest, status chan<- svc.Status) bool {
	switch r.Cmd {
	case svc.Interrogate:
		status <- r.CurrentStatus
	case svc.Stop, svc.Shutdown, svc.PreShutdown:
		return true
	}
	return false
}

func (h *handler) ended(asked bool) (own bool, code uint32) {
	switch {
	case h.err != nil:
		h.log.Error("ended", "error", h.err)
		return true, exitFailed
	case !asked:
		h.log.Error("ended though nobody asked for it")
		return true, exitFailed
	}
	return false, 0
}

// progress tells the service manager how far something has come.
type progress struct {
	status chan<- svc.Status
	state  svc.State
	point  uint32
}

func (p *progress) become(s svc.State) {
	if p.state != svc.StopPending { // nothing comes after that
		p.state, p.point = s, 0
		p.tell()
	}
}

func (p *progress) tell() {
	s := svc.Status{State: p.state, Accepts: accepted}
	switch p.state {
	case svc.StartPending:
		s.Accepts = svc.AcceptStop
		fallthrough
	case svc.StopPending:
		p.point++
		s.CheckPoint, s.WaitHint = p.point, uint32(patience.Milliseconds())
	case svc.Running:
		if p.point > 0 {
			return // once is enough
		}
		p.point = 1
	}
	if p.state == svc.StopPending {
		s.Accepts = 0
	}
	p.status <- s
}

// stacks returns what all goroutines are doing.
func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}
