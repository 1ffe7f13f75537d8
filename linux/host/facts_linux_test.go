// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// freshNamespace puts the test's own thread into a network namespace of its own;
// the thread ends with the test.
func freshNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
}

func TestExamineSeesForwarding(t *testing.T) {
	freshNamespace(t)
	level := func() diagnosis.Level {
		for _, c := range diagnosis.Node(Facts()) {
			if c.ID == "forwarding-ipv4" {
				return c.Level
			}
		}
		return "missing"
	}
	for _, c := range []struct {
		value int
		want  diagnosis.Level
	}{{0, diagnosis.Fail}, {1, diagnosis.OK}} {
		if err := (Setting{Path: "proc/sys/net/ipv4/ip_forward", Want: c.value}).Apply("/", slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if got := level(); got != c.want {
			t.Errorf("ip_forward=%d: %s, want %s", c.value, got, c.want)
		}
	}
}

func TestExaminedChecksAreComplete(t *testing.T) {
	freshNamespace(t)
	seen := map[string]bool{}
	for _, c := range diagnosis.Node(Facts()) {
		if c.ID == "" || c.Found == "" || seen[c.ID] {
			t.Errorf("check %+v: incomplete, or twice", c)
		}
		if (c.Level == diagnosis.Fail || c.Level == diagnosis.Warn) && c.Fix == "" {
			t.Errorf("check %s says %q and not what to do", c.ID, c.Found)
		}
		seen[c.ID] = true
	}
}

// What is changed is logged, once; what cannot be set says why and what to do.
func TestApplyLogsWhatItChanges(t *testing.T) {
	freshNamespace(t)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if err := (Setting{Path: "proc/sys/net/ipv4/no_such_thing", Want: 1}).Apply("/", logger); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "sysctl -w net.ipv4.no_such_thing=1") {
		t.Errorf("a parameter that does not exist: %v", err)
	}
	if _, err := Sysctl("net/ipv4/no_such_thing"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "is not loaded") {
		t.Errorf("reading it: %v", err)
	}
	was, err := Sysctl("net/ipv4/tcp_fin_timeout")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(was)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := (Setting{Path: "proc/sys/net/ipv4/tcp_fin_timeout", Want: n + 1}).Apply("/", logger); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := Sysctl("net/ipv4/tcp_fin_timeout"); err != nil || got != strconv.Itoa(n+1) {
		t.Errorf("got %q, %v", got, err)
	}
	if text := log.String(); strings.Count(text, "kernel setting changed") != 1 || !strings.Contains(text, "net.ipv4.tcp_fin_timeout") {
		t.Errorf("logged:\n%s", text)
	}
}
