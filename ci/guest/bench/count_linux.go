package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// count tells what a proxy does for one change of an endpoint: how many messages
// it and its children send over netlink, and how many programs it starts, as
// strace sees it.
func (r *rig) count(pid, service int) (sends, programs string) {
	file := fmt.Sprintf("/run/strace-%d", pid)
	trace := exec.Command("strace", "-f", "-qq", "-s", "0", "-yy", "-e", "trace=write,sendto,sendmsg,execve,setsockopt", "-o", file, "-p", fmt.Sprint(pid))
	if err := trace.Start(); err != nil {
		return "?", "?" // there is no strace
	}
	defer func() { _ = trace.Process.Signal(syscall.SIGTERM); _ = trace.Wait() }()
	time.Sleep(5 * time.Second) // until it holds all threads, and the last change has no consequences any more
	before, err := os.ReadFile(file)
	if err != nil {
		return "?", "?"
	}
	if _, err := r.change(service); err != nil {
		return "?", "?"
	}
	time.Sleep(5 * time.Second) // what it does behind the change
	text, err := os.ReadFile(file)
	if err != nil {
		return "?", "?"
	}
	text = text[len(before):]
	var sent, started int
	for line := range bytes.Lines(text) {
		l := string(line)
		switch {
		case strings.Contains(l, "<NETLINK"), strings.Contains(l, "SO_SET_REPLACE"):
			sent++
		case strings.Contains(l, "execve(") && !strings.Contains(l, "ENOENT"):
			started++
		}
	}
	return fmt.Sprint(sent), fmt.Sprint(started)
}
