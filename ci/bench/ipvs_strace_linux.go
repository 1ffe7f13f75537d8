// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// count records what a proxy does for one change of an endpoint: how many messages
// it and its children send over netlink, and how many programs it starts, as
// strace sees it. Where there is no strace nothing is recorded.
func (r *ipvsRun) count(pid, service int, s samples) {
	file := fmt.Sprintf("/run/strace-%d", pid)
	trace := exec.Command("strace", "-f", "-qq", "-s", "0", "-yy", "-e", "trace=write,sendto,sendmsg,execve,setsockopt", "-o", file, "-p", fmt.Sprint(pid))
	if err := trace.Start(); err != nil {
		return
	}
	defer func() { _ = trace.Process.Signal(syscall.SIGTERM); _ = trace.Wait() }()
	sleep(r.ctx, 5*time.Second) // until it holds all threads, and the last change has no consequences any more
	before, err := os.ReadFile(file)
	if err != nil || r.change(service, samples{}) != nil {
		return
	}
	sleep(r.ctx, 5*time.Second) // work that follows the change
	text, err := os.ReadFile(file)
	if err != nil {
		return
	}
	sends, programs := 0, 0
	for line := range strings.Lines(string(text[len(before):])) {
		switch {
		case strings.Contains(line, "<NETLINK"), strings.Contains(line, "SO_SET_REPLACE"):
			sends++
		case strings.Contains(line, "execve(") && !strings.Contains(line, "ENOENT"):
			programs++
		}
	}
	s.add("sends", float64(sends))
	s.add("programs", float64(programs))
}
