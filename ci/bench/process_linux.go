// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a program under measurement. It is killed when this process ends.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// launch starts a program, whose output goes to a file of the folder.
func launch(dir string, cmd *exec.Cmd) (*process, error) {
	out, err := os.CreateTemp(dir, filepath.Base(cmd.Path)+"-*.log")
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = out, out
	// The signal comes when the thread ends that started the program: main's.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	p := &process{cmd: cmd, log: out.Name(), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // its log has the reason
		_ = out.Close()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// ended returns an error with the program's output if it has exited.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended:\n%s", filepath.Base(p.cmd.Path), p.said())
	default:
		return nil
	}
}

// said returns the end of the program's output.
func (p *process) said() string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-3000):])
}

// stop asks the program to end and kills it when it does not.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// usage watches what a process and its children take.
type usage struct {
	stop chan struct{}
	done sync.WaitGroup
	peak float64 // bytes, of the process and its children together
}

// watchUsage looks every 20 ms: children that live shorter may be missed.
func watchUsage(pid int) *usage {
	u := &usage{stop: make(chan struct{})}
	u.done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-u.stop:
				return
			case <-tick.C:
				u.peak = max(u.peak, resident(tree(pid, false)...))
			}
		}
	})
	return u
}

func (u *usage) end() (peak float64) {
	close(u.stop)
	u.done.Wait()
	return u.peak
}

// tree returns a process and all below it. Without workers that run its own
// program, such as nginx's, it leaves out children that have not begun to run
// another: until then they have their parent's memory.
func tree(pid int, workers bool) []int {
	all := []int{pid}
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		for _, child := range strings.Fields(string(b)) {
			if c, err := strconv.Atoi(child); err == nil && (workers || program(c) != program(pid)) {
				all = append(all, tree(c, workers)...)
			}
		}
	}
	return all
}

func program(pid int) string {
	file, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return file
}

// resident returns the resident memory of processes in bytes; one that is gone
// has none.
func resident(pids ...int) (sum float64) {
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if f := strings.Fields(string(b)); len(f) > 1 {
			pages, _ := strconv.Atoi(f[1])
			sum += float64(pages * os.Getpagesize())
		}
	}
	return sum
}

// residentPeak is the most resident memory in bytes that a process has had so far.
func residentPeak(pid int) float64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	kib := 0.
	_, _ = fmt.Sscan(rest, &kib)
	return kib * 1024
}

// cpu returns the processor time in seconds that processes and those of their
// children that have ended took so far; see proc_pid_stat(5).
func cpu(pids ...int) (sum float64) {
	const ticks = 100 // a second: USER_HZ of every system with Go
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(b), ") ") // behind the name
		if f := strings.Fields(rest); len(f) > 14 {
			for _, field := range f[11:15] {
				n, _ := strconv.Atoi(field)
				sum += float64(n) / ticks
			}
		}
	}
	return sum
}

// ownCPU returns the processor time in seconds of this process and those of its
// children that have ended.
func ownCPU() (sum float64) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		_ = unix.Getrusage(who, &u) // cannot fail for these
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
	}
	return sum
}
