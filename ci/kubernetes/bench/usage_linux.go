package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// usage watches what a process and its children take.
type usage struct {
	pid  int
	stop chan struct{}
	done sync.WaitGroup

	mu   sync.Mutex
	peak int64 // bytes, of the process and its children together
}

// watchUsage looks every 20 ms: children that live shorter may be missed.
func watchUsage(pid int) *usage {
	u := &usage{pid: pid, stop: make(chan struct{})}
	u.done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-u.stop:
				return
			case <-tick.C:
			}
			total := int64(0)
			for _, p := range tree(pid) {
				total += resident(p)
			}
			u.mu.Lock()
			u.peak = max(u.peak, total)
			u.mu.Unlock()
		}
	})
	return u
}

func (u *usage) end() (peak int64) {
	close(u.stop)
	u.done.Wait()
	return u.peak
}

// tree returns a process and all below it, but for children that have not begun to
// run a program of their own: until then they have their parent's memory.
func tree(pid int) []int {
	all := []int{pid}
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		for _, child := range strings.Fields(string(b)) {
			if c, err := strconv.Atoi(child); err == nil && program(c) != program(pid) {
				all = append(all, tree(c)...)
			}
		}
	}
	return all
}

func program(pid int) string {
	file, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return file
}

// resident returns the resident memory of a process in bytes, 0 when it is gone.
func resident(pid int) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if f := strings.Fields(string(b)); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}

// cpu returns the processor time that a process and its children that have
// ended took so far. See proc_pid_stat(5).
func cpu(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 15 {
		return 0, fmt.Errorf("stat of %d: %q", pid, b)
	}
	const ticks = 100 // a second, on every system with Go
	sum := int64(0)
	for _, field := range f[11:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks, nil
}
