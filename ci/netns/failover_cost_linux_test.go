// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// usage is what the program has used.
type usage struct {
	cpu time.Duration // of this machine's, of all threads
	rss int           // KiB of its own memory: what is mapped from its file is not
	p50 time.Duration // of a connection through the node
}

// TestFailoverCost compares the program with and without failover under many connections
// that are answered, at rest and with 100 new ones a second.
func TestFailoverCost(t *testing.T) {
	if !*goals {
		t.Skip("takes 3 minutes of a quiet machine: ci/bench/run failover")
	}
	for _, c := range []struct {
		flows, perSecond int
		most             float64 // of a core
	}{{0, 0, 0.0005}, {10_000, 0, 0.0005}, {0, 100, 0.003}, {100_000, 100, 0.003}} {
		t.Run(fmt.Sprint(c.flows, "/", c.perSecond), func(t *testing.T) {
			f := newFailoverSite(t)
			f.track(c.flows)
			off, on := f.usage("off", c.perSecond), f.usage("on", c.perSecond)
			cost := (on.cpu - off.cpu).Seconds() / measured.Seconds()
			t.Logf("| %d flows, %d new a second | %.3f %% of a core | %.1f MB | %s, %s without |", c.flows, c.perSecond, 100*cost, float64(on.rss-off.rss)/1024,
				on.p50.Round(time.Microsecond), off.p50.Round(time.Microsecond))
			if cost > c.most || on.rss-off.rss > 2048 {
				t.Errorf("the goals are %.2f %% and 2 MB; with failover %+v, without %+v", 100*c.most, on, off)
			}
		})
	}
}

// track adds answered connections to the node's conntrack table.
func (f *failoverSite) track(flows int) {
	f.t.Helper()
	var b bytes.Buffer
	for n := range flows {
		client, port := fmt.Sprintf("10.%d.%d.%d", 100+n/50000, n/250%200, n%250), 1024+n%50000
		fmt.Fprintf(&b, "-I -p tcp -s %s --sport %d -d 10.96.1.%d --dport 80 -r 10.244.9.%d --reply-port-src 8080 -q %s --reply-port-dst %d --state ESTABLISHED -u SEEN_REPLY,ASSURED -t 3600\n",
			client, port, n%200, n%250, client, port)
	}
	path := filepath.Join(f.t.TempDir(), "flows")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.must("conntrack", "-R", path)
}

const measured = 40 * time.Second

// usage runs the program for a while.
func (f *failoverSite) usage(failover string, perSecond int) usage {
	f.t.Helper()
	f.flags = []string{"--proxy-mode", "nftables", "--endpoint-failover", failover}
	f.start()
	defer f.kill()
	f.load(100, 3*time.Second)
	before, err := usageOf(f.cmd.Process.Pid)
	begin := time.Now()
	var all []attempt
	if perSecond > 0 {
		all = f.load(perSecond, measured)
	} else {
		time.Sleep(measured)
	}
	after, failed := usageOf(f.cmd.Process.Pid)
	if err := errors.Join(err, failed); err != nil {
		f.t.Fatal(err)
	}
	took := time.Since(begin)
	after.cpu = time.Duration(float64(after.cpu-before.cpu) * measured.Seconds() / took.Seconds())
	if len(all) > 0 {
		after.p50 = percentile(all, 0.5)
	}
	return after
}

// usageOf reads the usage of a process.
func usageOf(pid int) (u usage, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return u, fmt.Errorf("no CPU time of process %d: %w", pid, err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return u, err
		}
		nanoseconds, _, _ := bytes.Cut(text, []byte(" "))
		n, err := strconv.ParseInt(string(nanoseconds), 10, 64)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(n)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	_, rest, found := bytes.Cut(text, []byte("RssAnon:"))
	if fields := bytes.Fields(rest); found && len(fields) > 0 {
		u.rss, err = strconv.Atoi(string(fields[0]))
	}
	return u, err
}
