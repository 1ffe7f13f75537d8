// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// follow runs tandem trace --live on the node, while a client connects where that is not
// the node itself.
func (s *site) follow(from string, to netip.AddrPort, proto model.Proto, more ...string) (t question.Trace, code int) {
	s.t.Helper()
	done := make(chan struct{})
	connecting := make(chan struct{})
	go func() {
		defer close(connecting)
		for from != "host" {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
				// The test checks its outcome only through trace.
				_, _ = s.net.Dial(lab.Call{From: "10.244.1.10", Proto: proto, To: to, Timeout: 100 * time.Millisecond})
			}
		}
	}()
	code = verb(s.t, s, &t, append([]string{"trace", from, to.String() + "/" + proto.String(), "--live"}, more...)...)
	close(done)
	<-connecting
	if t.Live == nil {
		s.t.Fatalf("%s -> %s: nothing was followed", from, to)
	}
	if tables := s.must("nft", "list", "tables"); strings.Contains(tables, "tandem-trace") {
		s.t.Errorf("left behind:\n%s", tables)
	}
	return t, code
}

// TestTraceLive follows real packets in each mode: what became of them is what must happen,
// and where another program's rules interfere the difference is named.
func TestTraceLive(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		s := newSite(t)
		s.wrap, s.flags = flavour.wrap, []string{"--proxy-mode", string(mode.Name)}
		s.write("", "10.244.1.2", "10.244.1.3")
		s.start()
		endpoints := []string{"10.244.1.2:8080", "10.244.1.3:8080"}
		for _, from := range []string{"host", "pod", "10.244.1.10"} {
			for to, proto := range map[netip.AddrPort]model.Proto{clusterIP: model.TCP, nodePort: model.TCP, dnsIP: model.UDP} {
				tr, code := s.follow(from, to, proto)
				l := tr.Live
				if code != 0 || l.Outcome != "forward" || !slices.Contains(endpoints, l.Endpoint) || l.Difference != "" || len(l.Path) == 0 {
					t.Errorf("%s -> %s/%s: exit code %d, live %+v", from, to, proto, code, *l)
				}
				path := strings.Join(l.Path, "\n")
				if rule := strings.Contains(path, "nftables: ip "); rule != s.inNFTables(mode, flavour) && mode.Name != "userspace" {
					t.Errorf("%s -> %s/%s: rules of nf_tables in its way: %t: %q", from, to, proto, rule, l.Path)
				}
				if chosen := "-> " + to.String() + " sent to " + l.Endpoint + " ("; mode.Name == ipvs.Name && !strings.Contains(path, chosen) {
					t.Errorf("%s -> %s/%s: not what IPVS chose, %q: %q", from, to, proto, chosen, l.Path)
				}
			}
		}

		// What no Service has, and another program's rules.
		if tr, code := s.follow("host", netip.MustParseAddrPort("192.0.2.100:9"), model.TCP); code != 0 || tr.Live.Outcome != "pass" {
			t.Errorf("a closed port of another machine: exit code %d, %+v", code, *tr.Live)
		}
		s.must("nft", "add table ip firewall; add chain ip firewall output { type filter hook output priority -310; }; add chain ip firewall input { type filter hook prerouting priority -310; }; "+
			"add rule ip firewall output ip daddr 10.96.0.10 drop; add rule ip firewall input ip daddr 10.96.0.10 drop")
		for _, from := range []string{"host", "pod"} {
			tr, code := s.follow(from, clusterIP, model.TCP)
			if l := tr.Live; code != 3 || l.Outcome != "drop" || !strings.Contains(l.Difference, "ip firewall") || !strings.Contains(l.Difference, "[ ip daddr 10.96.0.10 drop ]") ||
				from == "pod" && l.Client != "10.244.1.10" {
				t.Errorf("%s, dropped by another program: exit code %d, %+v", from, code, *l)
			}
		}
		s.must("nft", "delete table ip firewall")
		if mode.Name == ipvs.Name {
			s.followBehindIPVS()
		}

		s.write("")
		s.eventually(10*time.Second, "rejected", func() error {
			tr, code := s.follow("host", clusterIP, model.TCP)
			if l := tr.Live; code != 0 || tr.Outcome != "reject" || l.Outcome != "reject" || l.Difference != "" {
				return fmt.Errorf("exit code %d, must %s, live %+v", code, tr.Outcome, *l)
			}
			return nil
		})
		if tr, code := s.follow("203.0.113.77", clusterIP, model.TCP, "--timeout", "300ms"); code != 1 || tr.Live.Seen() {
			t.Errorf("no packet is sent: exit code %d, %+v", code, *tr.Live)
		}
	})
}

// inNFTables reports whether a mode's rules are in nf_tables, which tells of each.
func (s *site) inNFTables(mode dataplane.Mode, flavour flavour) bool {
	if mode.Name == ipvs.Name {
		return strings.Contains(s.must("iptables", "--version"), "nf_tables")
	}
	return mode.Name == "nftables" || flavour.name == "iptables-nft" || flavour.name == "userspace-nft"
}

// followBehindIPVS follows packets whose destination IPVS has chosen and conntrack does not
// tell: they are dropped later, or not tracked.
func (s *site) followBehindIPVS() {
	s.must("nft", "add table ip firewall; add chain ip firewall last { type filter hook postrouting priority -310; }; add rule ip firewall last tcp dport 8080 drop")
	tr, code := s.follow("host", clusterIP, model.TCP)
	path := strings.Join(tr.Live.Path, "\n")
	if l := tr.Live; code != 3 || l.Outcome != "drop" || !strings.Contains(l.Difference, "ip firewall") || !strings.Contains(path, "-> 10.96.0.10:80 sent to 10.244.1.") {
		s.t.Errorf("dropped behind IPVS: exit code %d, %+v", code, *l)
	}
	s.must("nft", "delete table ip firewall")

	s.must("sysctl", "-w", "net.ipv4.vs.conntrack=0")
	tr, code = s.follow("pod", clusterIP, model.TCP, "--timeout", "2s")
	if l := tr.Live; code != 0 || l.Outcome != "forward" || !strings.HasPrefix(l.Endpoint, "10.244.1.") || !strings.Contains(strings.Join(l.Path, "\n"), "net.ipv4.vs.conntrack is 0") {
		s.t.Errorf("not tracked: exit code %d, %+v", code, *l)
	}
	s.must("sysctl", "-w", "net.ipv4.vs.conntrack=1")
}

// A node port on a loopback address is served by a relay in every mode; without events of
// conntrack nothing is reported.
func TestTraceLiveOnLoopback(t *testing.T) {
	needNFTables(t)
	s := newSite(t)
	s.flags = []string{"--proxy-mode", "nftables", "--nodeport-addresses", "localhost,primary"}
	s.write("", "10.244.1.2")
	s.start()
	s.eventually(10*time.Second, "the relay serves", func() error {
		tr, code := s.follow("host", netip.MustParseAddrPort("127.0.0.1:30080"), model.TCP)
		if l := tr.Live; code != 0 || l.Outcome != "forward" || l.Endpoint != "10.244.1.2:8080" {
			return fmt.Errorf("exit code %d, must %s, live %+v", code, tr.Outcome, *l)
		}
		return nil
	})
	s.must("sysctl", "-w", "net.netfilter.nf_conntrack_events=0")
	if out, err := s.run(s.bin, "trace", "host", clusterIP.String(), "--live"); err == nil || !strings.Contains(out, "nf_conntrack_events") {
		t.Errorf("without events: %v: %s", err, out)
	}
}

// The table that marks packets is removed with the process, also when it is killed.
func TestTraceLiveLeavesNothing(t *testing.T) {
	needNFTables(t)
	s := newSite(t)
	s.flags = []string{"--proxy-mode", "nftables"}
	s.write("", "10.244.1.2")
	s.start()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		cmd := exec.Command(s.bin, "trace", "203.0.113.77", clusterIP.String(), "--live", "--timeout", "1m")
		if err := s.net.Do(lab.Node, cmd.Start); err != nil {
			t.Fatal(err)
		}
		table := func(want bool) func() error {
			return func() error {
				if strings.Contains(s.must("nft", "list", "tables"), "tandem-trace") != want {
					return errors.New("not yet")
				}
				return nil
			}
		}
		s.eventually(10*time.Second, "a table", table(true))
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		s.eventually(10*time.Second, "no table after "+signal.String(), table(false))
	}
}
