package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/windows/svc"
)

const (
	checkpoint = time.Second      // how often the service manager is told that something goes on
	patience   = 5 * time.Second  // how long it shall wait for the next checkpoint
	starting   = 20 * time.Second // after which the service counts as started: the API server may be down
	stopping   = 20 * time.Second // after which a stop that hangs is ended
)

// errHung ends a service whose work did not end when it was told to.
var errHung = errors.New("the stop hung and was ended by force")

// errUnasked is work that ended without an error, though nobody asked for it.
var errUnasked = errors.New("it ended though nobody asked for it")

// Serve runs a program as the service that the service manager has started this
// process for, and returns when it is over. The service counts as starting until
// the program is ready, but not for ever. The context is not of use: the service
// manager says when to stop.
func Serve(_ context.Context, p Program) error {
	d, err := openDiary()
	if err != nil {
		return err
	}
	h := &handler{program: p, diary: d, beat: checkpoint, starting: starting, stopping: stopping}
	if err := svc.Run(Name, h); err != nil {
		h.err = fmt.Errorf("talk to the service manager: %w; --windows-service is only for what it has started", err)
	}
	return errors.Join(h.err, d.Close())
}

// handler talks to the service manager (svc.Handler).
type handler struct {
	program Program
	diary   *diary
	err     error

	beat, starting, stopping time.Duration
}

const accepted = svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown

// Execute implements svc.Handler.
func (h *handler) Execute(args []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (own bool, code uint32) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := progress{status: status, state: svc.StartPending}
	p.tell()
	h.diary.started(ensureRecovery(args[0]))
	ready, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- h.program.Work(ctx, h.diary, func() {
			select {
			case ready <- struct{}{}:
			default:
			}
		})
	}()
	tick := time.NewTicker(h.beat)
	defer tick.Stop()
	begun := time.Now()
	for {
		select {
		case err := <-done:
			if err == nil && p.state != svc.StopPending {
				err = errUnasked
			}
			return h.ended(err)
		case <-ready:
			p.become(svc.Running)
		case r := <-requests:
			if asked(r, status) && p.state != svc.StopPending {
				cancel()
				p.become(svc.StopPending)
				begun = time.Now()
			}
		case <-tick.C:
			switch {
			case p.state == svc.StartPending && time.Since(begun) > h.starting:
				h.diary.line("not ready yet, going on")
				p.become(svc.Running)
			case p.state == svc.StopPending && time.Since(begun) > h.stopping:
				h.diary.stacks()
				return h.ended(errHung)
			}
			p.tell()
		}
	}
}

// asked answers a request, and reports whether it is to stop.
func asked(r svc.ChangeRequest, status chan<- svc.Status) bool {
	switch r.Cmd {
	case svc.Interrogate:
		status <- r.CurrentStatus
	case svc.Stop, svc.Shutdown, svc.PreShutdown:
		return true
	}
	return false
}

// ended tells how it ended: with the program's own exit code, which the service
// manager keeps (`sc query`), and on which it starts the service again.
func (h *handler) ended(err error) (own bool, code uint32) {
	h.err = err
	h.diary.ended(err)
	if err == nil {
		return false, 0
	}
	return true, uint32(h.program.Code(err))
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
