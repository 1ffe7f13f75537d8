// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// weighted are endpoints with weights, each with a slice of its own.
var weighted = []struct {
	at     netip.AddrPort
	weight int
}{
	{netip.MustParseAddrPort("10.244.1.2:9090"), 80},
	{netip.MustParseAddrPort("10.244.1.3:9090"), 20},
}

// TestSharesInEveryMode makes 10,000 real connections to a Service of two endpoints with
// the weights 80 and 20: they get these shares, give or take 1 %. Where a mode chooses at
// random the standard deviation is 0.4 % of 10,000 connections, so that one run in 80 is
// off by more; then there are more of them, until the share fits or they are 60,000, of
// which it is 0.16 % and one run in a billion is off.
func TestSharesInEveryMode(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		s := newSite(t)
		s.flags, s.wrap = []string{"--proxy-mode", string(mode.Name)}, flavour.wrap
		s.put(weightedManifest())
		s.start()
		const atOnce, most = 10_000, 60_000
		got, made, off := make([]int, len(weighted)), 0, 1.0
		for made < most && off > 0.01 {
			for i, n := range s.shares(atOnce) {
				got[i] += n
			}
			made += atOnce
			off = math.Abs(float64(got[0])/float64(made) - 0.8)
		}
		t.Logf("%d connections: %.2f %% and %.2f %%", made, 100*float64(got[0])/float64(made), 100*float64(got[1])/float64(made))
		if off > 0.01 {
			t.Errorf("%d of %d connections have reached the endpoint with weight 80 of 100", got[0], made)
		}
	})
}

func weightedManifest() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: %s, ports: [{name: http, protocol: TCP, port: %d}]}\n", clusterIP.Addr(), clusterIP.Port())
	for i, e := range weighted {
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%d, labels: {kubernetes.io/service-name: web}, annotations: {tandem.dev/weight: "%d"}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: %d}]
endpoints: [{addresses: [%s], nodeName: node-1, conditions: {ready: true}}]
`, i, e.weight, e.at.Port(), e.at.Addr())
	}
	fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", nodeIP)
	return b.String()
}

// shares makes connections from a pod, one after the other, and returns how many reached
// each endpoint. One thread is the client and both endpoints: a guest without KVM takes
// seconds for that, and minutes for goroutines.
func (s *site) shares(connections int) []int {
	s.t.Helper()
	got, listeners := make([]int, len(weighted)), make([]unix.PollFd, len(weighted))
	for i, e := range weighted {
		err := s.net.Do(lab.Place(e.at.Addr().String()), func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			listeners[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
			reuse := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) // connections of an earlier batch are in TIME_WAIT
			return errors.Join(err, reuse, unix.Bind(fd, sockaddr(e.at)), unix.Listen(fd, 8))
		})
		defer unix.Close(int(listeners[i].Fd))
		if err != nil {
			s.t.Fatal(err)
		}
	}
	err := s.net.Do("10.244.1.10", func() error {
		for n := range connections {
			if err := one(clusterIP, listeners, got); err != nil {
				return fmt.Errorf("connection %d: %w", n, err)
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// one makes a connection, waits until the endpoint that it reaches has ended it, and counts
// it for that one. A relay takes a reset for a refusal and tries the other endpoint: then
// the last one counts.
func one(to netip.AddrPort, listeners []unix.PollFd, got []int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return err
	}
	all := append(slices.Clone(listeners), unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	client, reached := &all[len(listeners)], -1
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		if _, err := unix.Poll(all, 1000); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for i, l := range listeners {
			if c, _, err := unix.Accept4(int(l.Fd), unix.SOCK_CLOEXEC); err == nil {
				reached = i
				if err := unix.Close(c); err != nil {
					return err
				}
			}
		}
		if client.Revents == 0 || reached < 0 {
			continue
		}
		n, err := unix.Read(fd, make([]byte, 1))
		if n != 0 {
			err = errors.New("the endpoint has said something")
		}
		got[reached]++
		return err
	}
	return errors.New("no endpoint ends the connection")
}
