// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// toEcho is web with an endpoint that sends back what it gets. It is where relays
// are that dial: outside of the test's namespace.
func toEcho(t *testing.T) *model.Port {
	t.Helper()
	opened := make(chan net.Listener, 1)
	go func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			close(opened)
			return
		}
		opened <- l
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	l := <-opened
	if l == nil {
		t.Fatal("no endpoint")
	}
	t.Cleanup(func() { _ = l.Close() })
	port := web()
	for _, pool := range port.Pools() {
		pool.Endpoints = []model.Endpoint{{Addr: l.Addr().(*net.TCPAddr).AddrPort()}}
	}
	return port
}

// call connects to some relay of a plane.
func (p plane) call() net.Conn {
	p.t.Helper()
	for _, r := range p.driver.relays.open {
		c, err := net.Dial("tcp", r.Addr().String())
		if err == nil {
			err = echoes(c)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		return c
	}
	p.t.Fatal("no relay")
	return nil
}

func echoes(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// led are the ways into our chains.
func led(rules []string) (ways []string) {
	for _, r := range rules {
		if strings.Contains(r, ":-A PREROUTING") || strings.Contains(r, ": -A PREROUTING") || strings.Contains(r, " hook ") {
			ways = append(ways, r)
		}
	}
	return ways
}

// A mode that is left keeps its connections and gets no new ones. Called back it
// serves as before, and it can go when the last connection has ended.
func TestDrain(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		port := toEcho(t)
		p := start(t, k, port)
		begun := time.Now()
		p.sync()
		enough := 300*time.Millisecond + 5*time.Since(begun) // to take the ways out of the rules, on this machine now
		before := rules(t)
		c := p.call()
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		alive := make(chan error, 1)
		go func() { time.Sleep(enough); alive <- echoes(c); cancel() }()
		if err := p.Drain(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a connection is there: %v", err)
		}
		if err := <-alive; err != nil {
			t.Errorf("the connection while the mode drains: %v", err)
		}
		if ways := led(rules(t)); len(led(before)) == 0 || len(ways) > 0 {
			t.Errorf("new connections are led to relays: %s", ways)
		}
		p.stop()

		p = start(t, k, port) // called back
		p.sync()
		if got := rules(t); !slices.Equal(got, before) {
			t.Errorf("called back:\n%s\nbefore:\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
		}
		c = p.call()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Drain(t.Context()); err != nil {
			t.Errorf("nothing is left to wait for: %v", err)
		}
		if has, err := hasRelayAddr(model.IPv4); !has || err != nil {
			t.Errorf("the shelter, while anything may lead there: %t, %v", has, err)
		}
		if err := p.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		p.stop()
		if got := strings.Join(rules(t), "\n"); strings.Contains(got, "KUBE") || strings.Contains(got, nftTable.Name) {
			t.Errorf("left:\n%s", got)
		}
	})
}

// What is removed goes at once, whatever connections there are.
func TestRemoveWaitsForNoConnection(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		p := start(t, k, toEcho(t))
		p.sync()
		c := p.call()
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Remove(ctx); err != nil || ctx.Err() != nil { // that connection does not end by itself
			t.Error(err, ctx.Err())
		}
		if has, err := hasRelayAddr(model.IPv4); has || err != nil {
			t.Errorf("the shelter: %t, %v", has, err)
		}
		p.stop()
	})
}

// Another holder of iptables' lock is waited for: nothing is said to be
// done that is not.
func TestTheLockIsWaitedFor(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	onNode(t, tableKinds()[0], func(t *testing.T) {
		// So that this is the variant of the host; the other has no lock.
		if out, err := exec.Command("iptables-legacy", "-A", "INPUT", "-s", "192.0.2.5", "-j", "DROP").CombinedOutput(); err != nil {
			t.Skipf("no legacy variant here: %v: %s", err, out)
		}
		lock, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		p := start(t, tableKinds()[0], web())
		defer p.stop()
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		free := make(chan error, 1)
		time.AfterFunc(2500*time.Millisecond, func() { free <- unix.Flock(int(lock.Fd()), unix.LOCK_UN) })
		p.sync()
		if err := <-free; err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("iptables-legacy-save", "-t", "nat").Output()
		if err != nil || !strings.Contains(string(out), "-j KUBE-PORTALS-IN") {
			t.Errorf("it is said to be done, and is not: %v\n%s", err, out)
		}
	})
}
