// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"net/netip"
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

// UDP sessions leave half of the ports that the system chooses from to all else on the node, and namespaces
// share what sessions have.
func TestSessionsLeavePorts(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	const ports, clients = 64, 100
	at, stop := names(t)
	defer stop()
	s := newServer(t, Options{Ports: ports, UDPIdle: time.Hour})
	of := func(namespace string) *Relay {
		p := balance(at)
		p.Port.Service = model.ServiceName{Namespace: namespace, Name: "dns"}
		r, err := s.Listen(model.UDP, netip.MustParseAddrPort("127.0.0.1:0"), p)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	asks := func(r *Relay, from int) bool { // from a port that the system does not choose
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: from}, net.UDPAddrFromAddrPort(r.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _, err = asker{c}.ask("who", 2*time.Second)
		return err == nil
	}
	evil, shop := of("evil"), of("shop")
	for i := range clients {
		if !asks(evil, 20_000+i) {
			t.Fatalf("client %d is not served", i)
		}
	}
	held := func(r *Relay) int {
		s.udpSlots.mu.Lock()
		defer s.udpSlots.mu.Unlock()
		return r.quota.held
	}
	all := held(evil)
	if all < ports/8 || all > ports/4 {
		t.Errorf("one namespace has %d sessions, of %d ports", all, ports)
	}
	other := of("evil")
	for i := range all / 2 {
		if !asks(other, 25_000+i) {
			t.Errorf("client %d of another Service of the namespace is not served", i)
		}
	}
	if got := held(other); got != all/2 || held(evil) > all-all/2+1 {
		t.Errorf("%d clients of another Service of the namespace have %d sessions: they end each other's; the first Service has %d", all/2, got, held(evil))
	}
	for i := range ports / 8 {
		if !asks(shop, 30_000+i) {
			t.Errorf("client %d of another one is not served", i)
		}
	}
	var others []net.Conn
	defer func() {
		for _, c := range others {
			c.Close()
		}
	}()
	for i := range ports/2 - 4 { // what listens here has some
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
		if err != nil {
			t.Fatalf("socket %d of another program: %v", i, err)
		}
		others = append(others, c)
	}
}
