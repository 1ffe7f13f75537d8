// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows/svc"

	"github.com/tandem-proxy/tandem/windows/folders/foldertest"
)

// These tests are run on Linux by ci/wine as well.

// buffer is a log in memory.
type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }

// stage is a service manager's side of a service.
type stage struct {
	t        *testing.T
	log      buffer
	handler  *handler
	requests chan svc.ChangeRequest
	status   chan svc.Status
	code     chan uint32
}

// play starts a service with a program.
func play(t *testing.T, work func(ctx context.Context, log io.Writer, ready func()) error) *stage {
	s := &stage{t: t, requests: make(chan svc.ChangeRequest), status: make(chan svc.Status, 100), code: make(chan uint32, 1)}
	s.handler = &handler{
		program: Program{Work: work, Code: func(error) int { return 7 }},
		log:     &serviceLog{WriteCloser: &s.log},
		beat:    10 * time.Millisecond, starting: time.Minute, stopping: 100 * time.Millisecond,
	}
	go func() {
		_, code := s.handler.Execute([]string{"tandem-of-a-test"}, s.requests, s.status)
		s.code <- code
	}()
	return s
}

// until waits for a state and returns all states before it.
func (s *stage) until(state svc.State) (before []svc.Status) {
	s.t.Helper()
	for {
		select {
		case got := <-s.status:
			if got.State == state {
				return before
			}
			before = append(before, got)
		case <-time.After(10 * time.Second):
			s.t.Fatalf("state %d is never reported", state)
		}
	}
}

func (s *stage) ends(want uint32) {
	s.t.Helper()
	select {
	case got := <-s.code:
		if got != want {
			s.t.Errorf("exit code %d, want %d: %v", got, want, s.handler.err)
		}
	case <-time.After(10 * time.Second):
		s.t.Fatal("it never ends")
	}
}

func TestStartAndStop(t *testing.T) {
	begin := make(chan struct{})
	s := play(t, func(ctx context.Context, _ io.Writer, ready func()) error {
		<-begin
		ready()
		<-ctx.Done()
		return nil
	})
	var last uint32
	starting := func(b svc.Status) {
		if b.State != svc.StartPending || b.CheckPoint <= last || b.WaitHint == 0 {
			t.Errorf("while it starts it reports %+v after checkpoint %d", b, last)
		}
		last = b.CheckPoint
	}
	for last < 2 {
		select {
		case b := <-s.status:
			starting(b)
		case <-time.After(10 * time.Second):
			t.Fatalf("%d checkpoints while it starts", last)
		}
	}
	close(begin)
	for _, b := range s.until(svc.Running) {
		starting(b)
	}
	s.requests <- svc.ChangeRequest{Cmd: svc.PreShutdown}
	s.until(svc.StopPending)
	s.ends(0)
}

func TestFails(t *testing.T) {
	s := play(t, func(context.Context, io.Writer, func()) error { return errors.New("no way") })
	s.ends(7)
	if !strings.Contains(s.log.String(), "no way") {
		t.Errorf("the log does not say why: %s", s.log.String())
	}
	s = play(t, func(context.Context, io.Writer, func()) error { return nil })
	s.ends(7) // unrequested: it is to be started again
}

// A service that was to stop, and did so with an error, is not to be started again.
func TestStopFails(t *testing.T) {
	s := play(t, func(ctx context.Context, _ io.Writer, ready func()) error {
		ready()
		<-ctx.Done()
		return errors.New("no way")
	})
	s.until(svc.Running)
	s.requests <- svc.ChangeRequest{Cmd: svc.Stop}
	s.ends(0)
	if !strings.Contains(s.log.String(), "no way") {
		t.Errorf("the log does not say why: %s", s.log.String())
	}
}

// A service that crashes all the time does not fill the disk.
func TestCrashesAreBounded(t *testing.T) {
	path := filepath.Join(foldertest.New(t, "crash.log", "crash.log.old"), "crash.log")
	crash := []byte(strings.Repeat("x", maxCrashes/2))
	for range 7 {
		f, err := openCrashes(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(crash); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int64{path: maxCrashes / 2, path + ".old": maxCrashes} {
		if info, err := os.Stat(name); err != nil || info.Size() != want {
			t.Errorf("%s: %v, %v, want %d bytes", name, info, err, want)
		}
	}
}

func TestStopHangs(t *testing.T) {
	s := play(t, func(_ context.Context, _ io.Writer, ready func()) error {
		ready()
		select {} // for good: the process ends with it
	})
	s.until(svc.Running)
	s.requests <- svc.ChangeRequest{Cmd: svc.Stop}
	s.ends(0) // else it would be started again
	if !errors.Is(s.handler.err, errHung) || !strings.Contains(s.log.String(), "TestStopHangs") {
		t.Errorf("%v; the log has no goroutines: %s", s.handler.err, s.log.String())
	}
}
