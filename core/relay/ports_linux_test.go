// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/tandem-proxy/tandem/core/model"
)

// inOwnNetwork runs the test that calls it again as a process in a network namespace of its
// own, and returns true there. Of its source ports there are few.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	const child = "TANDEM_RELAY_NETWORK"
	if os.Getenv(child) != "" {
		setUpLoopback(t)
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40063"), 0); err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
	return false
}

func setUpLoopback(t *testing.T) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	request := struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}{flags: syscall.IFF_UP}
	copy(request.name[:], "lo")
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); e != 0 {
		t.Fatal(e)
	}
}

// An endpoint to which all source ports are in use is one that failed, and slows no other
// Service down.
func TestAnEndpointWithoutPortsSlowsNoOther(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	type way struct {
		*Server
		evil, both, shop *Relay
	}
	var ways []way
	full, good := echo(t), named(t)
	for _, start := range []starter{newServer, newGoroutines} {
		s := start(t, Options{})
		ways = append(ways, way{s, listen(t, s, model.TCP, balance(full.at)), listen(t, s, model.TCP, balance(full.at, good.at)), listen(t, s, model.TCP, balance(good.at))})
	}
	for held := 0; ; held++ { // as many clients of it do
		c, err := net.Dial("tcp", full.at.String())
		if errors.Is(err, syscall.EADDRNOTAVAIL) && held > 0 {
			break
		} else if err != nil {
			t.Fatalf("connection %d: %v", held, err)
		}
		t.Cleanup(func() { c.Close() })
	}
	for i, s := range ways {
		if got, err := who(t, s.evil.Addr()); err == nil {
			t.Errorf("server %d: without a port the client was served by %q", i, got)
		}
		for range 2 {
			for _, r := range []*Relay{s.both, s.shop} {
				if s.backoff.until.Load() != nil {
					t.Errorf("server %d: all listeners back off", i)
				}
				if got, err := who(t, r.Addr()); err != nil || got != good.at.String() {
					t.Errorf("server %d: served by %q, %v", i, got, err)
				}
			}
		}
		if st := s.Stats(); st.Failed != 1 || st.Exhausted == 0 || s.backoff.until.Load() != nil {
			t.Errorf("server %d: %+v, back-off until %v", i, st, s.backoff.until.Load())
		}
	}
	if c, err := net.DialTimeout("tcp", full.at.String(), time.Second); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("there were ports meanwhile: %v, %v", c, err)
	}
}
