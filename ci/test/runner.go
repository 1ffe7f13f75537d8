// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// runner runs steps one after the other, in an environment of its own.
type runner struct {
	*report
	env  []string
	jobs int // packages, and tests of each that may run in parallel, at a time

	lanes *atomic.Int32 // how many of two lanes have not ended; nil for a runner that is alone
	whole int           // the jobs of both
}

// report is the progress and the results of one or more runners.
type report struct {
	begin time.Time

	mu     sync.Mutex // of what follows
	out    io.Writer
	tests  *tally
	spoke  time.Time
	cpu    time.Duration // of all steps that have ended
	failed []string      // steps
	left   []string      // what was not run
}

func newRunner(out io.Writer) *runner {
	r := &runner{report: &report{begin: time.Now(), spoke: time.Now(), out: out, tests: newTally()}}
	r.env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	// All is compiled with the flags of a release, so that it is compiled once.
	r.setenv("CGO_ENABLED=0")
	r.setenv("TANDEM_TEST_PART_OF_CORPUS=1") // see netns.Part
	r.setjobs(jobs())
	return r
}

func (r *runner) setjobs(n int) {
	r.jobs = n
	r.setenv(fmt.Sprintf("GOFLAGS=%s -trimpath -p=%d", os.Getenv("GOFLAGS"), n))
}

func (r *runner) setenv(variable string) { r.env = append(r.env, variable) }

// both runs two lists of steps at the same time. Half of what they do is waiting: for
// guests, timers of connections, and single processes. Each has half of the jobs until the other has ended.
func (r *runner) both(one, other func(*runner)) {
	var lanes sync.WaitGroup
	var left atomic.Int32
	left.Store(2)
	for _, steps := range []func(*runner){one, other} {
		lane := &runner{report: r.report, env: slices.Clone(r.env), lanes: &left, whole: r.jobs}
		lane.setjobs(max(r.jobs/2, 1))
		lanes.Go(func() {
			defer left.Add(-1)
			steps(lane)
		})
	}
	lanes.Wait()
}

// share gives a lane all jobs once it is the last one.
func (r *runner) share() {
	if r.lanes != nil && r.lanes.Load() == 1 {
		r.setjobs(r.whole)
		r.lanes = nil
	}
}

// memoryOfJob is the memory for linking the largest test, or running a package's
// tests.
const memoryOfJob = 1500 << 20

// jobs returns how many packages are built and tested at a time: two per core, as
// tests wait half of their time, and as far as the memory that is free goes.
func jobs() int {
	n := 2 * runtime.NumCPU()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return n // not Linux
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemAvailable:" {
			kilobytes, _ := strconv.Atoi(f[1])
			n = min(n, kilobytes<<10/memoryOfJob)
		}
	}
	return max(n, 1)
}

// say prints one line.
func (r *report) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoke = time.Now()
	fmt.Fprintf(r.out, format+"\n", args...)
}

// Write implements io.Writer for the output of commands.
func (r *report) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoke = time.Now()
	return r.out.Write(p)
}

// silence is the time without output after which a step prints its progress.
const silence = 15 * time.Second

// during runs f as a step; doing returns its progress.
func (r *runner) during(name string, doing func() string, f func() error) {
	begin := time.Now()
	r.share()
	r.say("\n== %s (after %s)", name, passed(r.begin))
	end := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			r.mu.Lock()
			if time.Since(r.spoke) >= silence {
				r.spoke = time.Now()
				fmt.Fprintf(r.out, "      %s: %s\n", passed(begin), doing())
			}
			r.mu.Unlock()
		}
	})
	err := f()
	close(end)
	watch.Wait()
	if err != nil {
		r.mu.Lock()
		r.failed = append(r.failed, name)
		r.mu.Unlock()
		r.say("FAIL  %s: %v, %s", name, err, passed(begin))
		return
	}
	r.say("done  %s, %s", name, passed(begin))
}

// step runs a command as a step and passes its output on.
func (r *runner) step(ctx context.Context, name string, command ...string) {
	r.stepIn(ctx, ".", name, command...)
}

func (r *runner) stepIn(ctx context.Context, dir, name string, command ...string) {
	r.during(name, func() string { return name }, func() error { return r.command(ctx, dir, r, r, command...) })
}

// command runs a command and adds up its processor time.
func (r *runner) command(ctx context.Context, dir string, stdout, stderr io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, r.env, stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if s := cmd.ProcessState; s != nil {
		r.mu.Lock()
		r.cpu += s.UserTime() + s.SystemTime()
		r.mu.Unlock()
	}
	return errors.Join(err, ctx.Err())
}

// packages returns the folders of all packages with tests.
func (r *runner) packages(ctx context.Context) (all []string, err error) {
	var out strings.Builder
	err = r.command(ctx, ".", &out, r, "go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...")
	for line := range strings.Lines(out.String()) {
		all = append(all, short(strings.TrimSpace(line)))
	}
	return all, err
}

// format fails where gofmt would change a file.
func (r *runner) format(ctx context.Context) {
	r.during("gofmt", func() string { return "gofmt" }, func() error {
		var out strings.Builder
		if err := r.command(ctx, ".", &out, r, "gofmt", "-s", "-l", "."); err != nil || out.Len() == 0 {
			return err
		}
		return fmt.Errorf("not formatted:\n%s", out.String())
	})
}

// build compiles everything and prints progress.
func (r *runner) build(ctx context.Context) {
	count, last := 0, "" // under mu
	doing := func() string { return fmt.Sprintf("%d packages compiled, last %s", count, last) }
	r.during("build", doing, func() error {
		names, write := io.Pipe()
		var reading sync.WaitGroup
		reading.Go(func() {
			for lines := bufio.NewScanner(names); lines.Scan(); {
				r.mu.Lock()
				count, last = count+1, lines.Text()
				if strings.Contains(last, " ") { // not a package: a message of the compiler
					fmt.Fprintln(r.out, last)
				}
				r.mu.Unlock()
			}
		})
		err := r.command(ctx, ".", r, write, "go", "build", "-v", "./...")
		write.Close()
		reading.Wait()
		return err
	})
}

// goTest runs `go test` with arguments in a folder, and a line for each package.
// The tests are not vetted again.
func (r *runner) goTest(ctx context.Context, name, dir string, args ...string) {
	r.during(name, r.tests.now, func() error {
		stream, write := io.Pipe()
		var reading sync.WaitGroup
		var readErr error
		reading.Go(func() {
			readErr = r.tests.read(stream, r)
			_, _ = io.Copy(io.Discard, stream)
		})
		err := r.command(ctx, dir, write, r, append([]string{"go", "test", "-json", "-vet=off", "-timeout=30m", fmt.Sprintf("-parallel=%d", r.jobs)}, args...)...)
		write.Close()
		reading.Wait()
		return errors.Join(err, readErr)
	})
}

// leave records a step that is not run.
func (r *runner) leave(what string) { r.left = append(r.left, what) }

// summary prints the results, and reports whether all steps passed.
func (r *runner) summary() bool {
	t := r.tests
	r.say("%s", t.failures())
	for _, why := range slices.Sorted(maps.Keys(t.skipped)) {
		tests := t.skipped[why]
		r.say("skipped %d, such as %s %s: %s", len(tests), tests[0].pkg, tests[0].name, why)
	}
	for _, line := range slices.Concat(t.notes, r.left) {
		r.say("%s", line)
	}
	skipped := 0
	for _, tests := range t.skipped {
		skipped += len(tests)
	}
	r.say("\n%d packages, %d tests passed, %d failed, %d skipped, in %s; %s of processor time, %d packages at a time",
		t.packages, t.passed, len(t.failed), skipped, passed(r.begin), r.cpu.Round(time.Second), r.jobs)
	if len(r.failed) > 0 {
		r.say("FAILED: %s", strings.Join(r.failed, ", "))
	}
	return len(r.failed) == 0
}

func passed(since time.Time) string { return time.Since(since).Round(time.Second).String() }
