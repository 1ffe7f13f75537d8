// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/windows/svc"
)

const (
	checkpoint = time.Second      // how often a pending start or stop is reported
	patience   = 5 * time.Second  // how long the service manager waits for the next checkpoint
	starting   = 20 * time.Second // after which the service counts as started: the API server may be down
	stopping   = 20 * time.Second // after which a stop that hangs is ended
)

// errHung ends a service whose work did not end after a request to stop. The end of the process
// is that of the work.
var errHung = errors.New("stop timed out; terminated")

// errUnrequested is work that ended without an error and without a request to stop.
var errUnrequested = errors.New("ended without a request to stop")

// Serve runs a program as the service that the service manager has started this
// process for, and returns when it is over. The service counts as starting until
// the program is ready, for 20 s at most. The context is not used: the service
// manager requests a stop.
func Serve(_ context.Context, p Program) error {
	d, err := openLog()
	if err != nil {
		return err
	}
	h := &handler{program: p, log: d, beat: checkpoint, starting: starting, stopping: stopping}
	if err := svc.Run(Name, h); err != nil {
		h.err = fmt.Errorf("connect to the service manager: %w; --windows-service is only for processes that it starts", err)
	}
	return errors.Join(h.err, d.Close())
}

// handler talks to the service manager (svc.Handler).
type handler struct {
	program Program
	log     *serviceLog
	err     error

	beat, starting, stopping time.Duration
}

const accepted = svc.AcceptStop | svc.AcceptShutdown | svc.AcceptPreShutdown

func (h *handler) Execute(args []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (own bool, code uint32) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := progress{status: status, state: svc.StartPending}
	p.report()
	h.log.started(ensureRecovery(args[0]))
	ready, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- h.program.Work(ctx, h.log, func() {
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
				err = errUnrequested
			}
			return h.ended(err, p.state == svc.StopPending)
		case <-ready:
			p.enter(svc.Running)
		case r := <-requests:
			if stopRequested(r, status) && p.state != svc.StopPending {
				cancel()
				p.enter(svc.StopPending)
				begun = time.Now()
			}
		case <-tick.C:
			switch {
			case p.state == svc.StartPending && time.Since(begun) > h.starting:
				h.log.line("not ready yet; continuing")
				p.enter(svc.Running)
			case p.state == svc.StopPending && time.Since(begun) > h.stopping:
				h.log.stacks()
				return h.ended(errHung, true)
			}
			p.report()
		}
	}
}

// stopRequested answers a request, and reports whether it is to stop.
func stopRequested(r svc.ChangeRequest, status chan<- svc.Status) bool {
	switch r.Cmd {
	case svc.Interrogate:
		status <- r.CurrentStatus
	case svc.Stop, svc.Shutdown, svc.PreShutdown:
		return true
	}
	return false
}

// ended reports how it ended: with the program's own exit code, which the service
// manager shows (`sc query`) and restarts the service on, whether it was to stop or not
// (SERVICE_FAILURE_ACTIONS_FLAG). So the failure of a requested stop is logged alone.
func (h *handler) ended(err error, requested bool) (own bool, code uint32) {
	h.err = err
	h.log.ended(err)
	if err == nil || requested {
		return false, 0
	}
	return true, uint32(h.program.Code(err))
}

// progress reports the state of a start or stop to the service manager.
type progress struct {
	status chan<- svc.Status
	state  svc.State
	point  uint32
}

func (p *progress) enter(s svc.State) {
	if p.state != svc.StopPending { // nothing comes after that
		p.state, p.point = s, 0
		p.report()
	}
}

func (p *progress) report() {
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
			return // reported already
		}
		p.point = 1
	}
	if p.state == svc.StopPending {
		s.Accepts = 0
	}
	p.status <- s
}
