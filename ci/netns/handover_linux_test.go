// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/iptables"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform/connectivity"
)

func newStore(t *testing.T) *connectivity.Store {
	t.Helper()
	s, err := connectivity.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestUserspaceRestartUnderLoad ends and starts the userspace mode while clients
// connect: with a service manager that keeps its sockets none of them fails. What the
// process had accepted when it was killed is closed.
func TestUserspaceRestartUnderLoad(t *testing.T) {
	s := newSite(t)
	kept := newStore(t)
	s.flags, s.wrap = []string{"--proxy-mode", string(relay.Mode)}, kept.Hand
	s.write("", "10.244.1.2", "10.244.1.3")
	s.start()
	if n := kept.Size(); n == 0 {
		t.Fatal("no socket was handed over")
	}
	traffic := s.traffic()
	t.Cleanup(traffic.end)
	for range 3 {
		time.Sleep(500 * time.Millisecond)
		traffic.kills.Add(1)
		s.kill()
		time.Sleep(300 * time.Millisecond) // RestartSec
		s.start()
	}
	time.Sleep(500 * time.Millisecond)
	traffic.end()
	t.Logf("%d connections through 3 restarts, %d failed, %d were cut", traffic.made.Load(), traffic.failed.Load(), traffic.cut.Load())
	if n := traffic.cut.Load(); n > 10 {
		t.Errorf("%d connections were cut: more than a process has between accept and answer", n)
	}
	if n := traffic.failed.Load(); n > 0 {
		t.Errorf("%d of %d new connections failed, the last: %v", n, traffic.made.Load(), traffic.failure())
	}
	before := kept.Size()
	s.put("apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: " + nodeIP.String() + "}]}\n")
	s.eventually(20*time.Second, "unused sockets are closed", func() error {
		if n := kept.Size(); n > 0 {
			return fmt.Errorf("%d of %d are kept", n, before)
		}
		return nil
	})
}

// TestLoopbackNodePorts: in every mode node ports answer on loopback addresses beside
// others, by relays: route_localnet is not changed. With mode iptables named that is the
// default, as kube-proxy's.
func TestLoopbackNodePorts(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		s := newSite(t)
		s.flags, s.wrap = []string{"--proxy-mode", string(mode.Name)}, flavour.wrap
		if mode.Name != iptables.Name {
			s.flags = append(s.flags, "--nodeport-addresses", "localhost,primary")
		}
		s.write("", "10.244.1.2")
		before := s.routeLocalnet()
		s.start()
		for _, at := range []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:30080"), nodePort} {
			s.eventually(time.Minute, at.String()+" answers", func() error {
				return s.call(lab.Call{From: lab.Node, Proto: model.TCP, To: at, Timeout: 10 * time.Second})
			})
		}
		if after := s.routeLocalnet(); strings.Contains(before+after, "1") {
			t.Errorf("route_localnet of all devices was %s and is %s", before, after)
		}
	})
}

// routeLocalnet returns that setting of all of the node's devices, and of new ones.
func (s *site) routeLocalnet() string {
	s.t.Helper()
	out, err := s.run("sh", "-c", "cat /proc/sys/net/ipv4/conf/*/route_localnet")
	if err != nil || out == "" {
		s.t.Fatalf("route_localnet: %v: %s", err, out)
	}
	return strings.Join(strings.Fields(out), "")
}

// TestLoopbackNodePortSwitch switches between all modes that work here, while clients connect to
// a node port on a loopback address: none of them fails, the switch has nothing to complain
// about, and the service manager has the sockets of the mode in use for the next process.
func TestLoopbackNodePortSwitch(t *testing.T) {
	s := newSite(t)
	modes := s.working()
	if len(modes) < 2 {
		t.Skipf("only %d mode works here", len(modes))
	}
	kept := newStore(t)
	s.flags, s.wrap = []string{"--proxy-mode", string(modes[0].Name), "--nodeport-addresses", "localhost,primary"}, kept.Hand
	s.write("", "10.244.1.2", "10.244.1.3")
	s.start()
	call := lab.Call{From: lab.Node, Proto: model.TCP, To: netip.MustParseAddrPort("127.0.0.1:30080"), Timeout: 10 * time.Second}
	ask := func() error { return s.call(call) }
	s.eventually(time.Minute, "the node port answers on a loopback address", ask)
	traffic := s.traffic(call)
	t.Cleanup(traffic.end)
	for i, from := range modes {
		for _, to := range modes[i+1:] {
			s.switchTo(from)
			for _, m := range []dataplane.Mode{to, from} {
				out := s.must(s.bin, "switch", "--to", string(m.Name))
				if strings.Contains(out, "loopback addresses") {
					t.Errorf("switch to %s: %s", m.Name, out)
				}
			}
		}
	}
	s.switchTo(modes[0])
	traffic.end()
	t.Logf("%d new connections, %d failed", traffic.made.Load(), traffic.failed.Load())
	if n := traffic.failed.Load(); n > 0 || traffic.made.Load() == 0 {
		t.Errorf("%d of %d new connections failed, the last: %v", n, traffic.made.Load(), traffic.failure())
	}
	if modes[0].Name == relay.Mode {
		return
	}
	s.kill()
	conn, err := s.net.Connect(call)
	if err != nil {
		t.Fatalf("a connection while no process runs: %v", err)
	}
	defer conn.Close()
	s.start()
	if a, err := lab.Ask(conn, time.Minute); err != nil || a.Outcome != lab.Answered {
		t.Errorf("a client that waited: %s, %v", a.Outcome, err)
	}
}

// TestLoopbackNodePortRestart ends and starts modes of the kernel, whose node ports answer
// on loopback addresses by relays: with a service manager that keeps their sockets, a
// client that connects while no process runs waits and is served by the next one. Sockets
// that the next process does not want are given up.
func TestLoopbackNodePortRestart(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		if mode.Name == relay.Mode {
			t.Skip("the relays of this mode are TestUserspaceRestartUnderLoad's")
		}
		s := newSite(t)
		kept := newStore(t)
		s.flags = []string{"--proxy-mode", string(mode.Name), "--nodeport-addresses", "localhost,192.0.2.0/24"}
		s.wrap = kept.Hand
		s.write("", "10.244.1.2")
		s.start()
		call := lab.Call{From: lab.Node, Proto: model.TCP, To: netip.MustParseAddrPort("127.0.0.1:30080"), Timeout: time.Minute}
		ask := func() error { return s.call(call) }
		s.eventually(time.Minute, "the node port answers on a loopback address", ask)
		for range 3 {
			s.kill()
			waiting := make(chan error, 1)
			conn, err := s.net.Connect(call)
			if err != nil {
				t.Fatalf("a connection while no process runs: %v", err)
			}
			go func() {
				a, err := lab.Ask(conn, time.Minute)
				if err == nil && a.Outcome != lab.Answered {
					err = fmt.Errorf("%s", a.Outcome)
				}
				waiting <- err
			}()
			s.start()
			if err := <-waiting; err != nil {
				t.Errorf("a client that waited: %v", err)
			}
			conn.Close()
			if err := ask(); err != nil {
				t.Errorf("a client after the restart: %v", err)
			}
		}
		none := func() error {
			if n := kept.Size(); n > 0 {
				return fmt.Errorf("%d are kept", n)
			}
			return nil
		}
		s.kill()
		s.flags[len(s.flags)-1] = "192.0.2.0/24"
		s.start()
		s.eventually(time.Minute, "sockets that the next process does not want are given up", none)
	})
}
