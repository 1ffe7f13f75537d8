// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// Process is a running program in a namespace. It is killed when this process ends,
// however that happens.
type Process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // of its end; read after done
}

// Run starts a program in a place of a lab. What it prints goes to the file log,
// which is appended to. The lab cannot be closed before the program has ended.
func Run(net *lab.Net, at lab.Place, log string, cmd *exec.Cmd) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	// The kernel sends the signal when the thread that started the program ends, so
	// that thread waits for the program.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &Process{cmd: cmd, log: log, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		defer out.Close()
		p.err = net.Do(at, func() error {
			err := cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return cmd.Wait()
		})
		select {
		case started <- p.err: // the place could not be entered
		default:
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID returns the process' number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the program as kill -9 does, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the program to end and kills it when it does not within some time.
// It returns how it ended, nil for a program that was ended by the signal. It
// may be called more than once.
func (p *Process) Stop(within time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(within):
		p.Kill()
		return fmt.Errorf("%s did not end within %s", p.cmd.Path, within)
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			return nil
		}
	}
	return p.err
}

// Said returns the last lines of the program's output.
func (p *Process) Said(lines int) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
