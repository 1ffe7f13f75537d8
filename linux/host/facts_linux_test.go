// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io/fs"
	"runtime"
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
		value string
		want  diagnosis.Level
	}{{"0", diagnosis.Fail}, {"1", diagnosis.OK}} {
		if err := EnsureSysctl("net/ipv4/ip_forward", c.value); err != nil {
			t.Fatal(err)
		}
		if got := level(); got != c.want {
			t.Errorf("ip_forward=%s: %s, want %s", c.value, got, c.want)
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

func TestEnsureSysctl(t *testing.T) {
	freshNamespace(t)
	if err := EnsureSysctl("net/ipv4/no_such_thing", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a parameter that does not exist: %v", err)
	}
	if err := EnsureSysctl("net/ipv4/ip_local_port_range", "20000 30000"); err != nil {
		t.Fatal(err)
	}
	if v, err := Sysctl("net/ipv4/ip_local_port_range"); err != nil || v != "20000\t30000" {
		t.Errorf("got %q, %v", v, err)
	}
	if err := EnsureSysctl("net/ipv4/ip_local_port_range", "20000   30000"); err != nil {
		t.Errorf("the same in other words: %v", err)
	}
}
