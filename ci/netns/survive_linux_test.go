// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// TestRestartIsInvisible kills the program with kill -9 and starts it again,
// five times, under new and long-lived connections: none may fail, and nothing
// may be written.
func TestRestartIsInvisible(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2", "10.244.1.3")
	s.start()

	var long []func() error
	for range 20 {
		conn, err := s.net.Connect(lab.Call{From: lab.Outside, Proto: model.TCP, To: nodePort, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		first, err := lab.Ask(conn, time.Second)
		if err != nil || first.Outcome != lab.Answered {
			t.Fatalf("%v %v", first.Outcome, err)
		}
		long = append(long, func() error {
			a, err := lab.Ask(conn, time.Second)
			if err == nil && (a.Outcome != lab.Answered || a.Server != first.Server) {
				err = fmt.Errorf("%s by %s, was with %s", a.Outcome, a.Server, first.Server)
			}
			return err
		})
	}

	stop := make(chan struct{})
	var made atomic.Int64
	var traffic sync.WaitGroup
	for _, to := range []netip.AddrPort{clusterIP, nodePort} {
		traffic.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.answers(to); err != nil {
					t.Errorf("new connection to %s: %v", to, err)
					return
				}
				made.Add(1)
			}
		})
	}
	for range 5 {
		time.Sleep(50 * time.Millisecond)
		s.kill()
		time.Sleep(50 * time.Millisecond)
		s.start()
		if doc, err := s.status(); err != nil || doc.Writes != 0 || doc.Objects == 0 {
			t.Errorf("a restart on right rules wrote %d of %d objects (%v)", doc.Writes, doc.Objects, err)
		}
		for _, ask := range long {
			if err := ask(); err != nil {
				t.Errorf("long-lived connection: %v", err)
			}
		}
	}
	close(stop)
	traffic.Wait()
	t.Logf("5 restarts: %d new connections and %d long-lived ones, 0 writes", made.Load(), len(long))
}

// TestDriftIsRepaired changes rules with nft. No input changes during the test.
func TestDriftIsRepaired(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2")
	s.start()
	right := s.must("nft", "-s", "list", "ruleset")
	for _, tt := range []struct {
		what   string
		within time.Duration
		nft    string
	}{
		{"everything flushed", 2 * time.Second, "flush ruleset"},
		{"our table deleted", 5 * time.Second, "delete table ip tandem"},
		{"an element deleted", 5 * time.Second, "delete element ip tandem vips { 10.96.0.10 . tcp . 80 }"},
		{"an endpoint edited", 5 * time.Second, "delete element ip tandem slots { 10.96.0.10 . tcp . 80 . 0 }; add element ip tandem slots { 10.96.0.10 . tcp . 80 . 0 : 10.244.1.9 . 1 }"},
		{"an element added", 5 * time.Second, "add element ip tandem vips { 10.96.0.99 . tcp . 80 : drop }"},
		{"a chain flushed", 5 * time.Second, "flush chain ip tandem prerouting"},
		{"a rule inserted", 5 * time.Second, "insert rule ip tandem prerouting drop"},
		{"a hook deleted", 5 * time.Second, "delete chain ip tandem prerouting"},
		{"a pick chain emptied", 5 * time.Second, "flush chain ip tandem pick-1"},
	} {
		for line := range strings.SplitSeq(tt.nft, "; ") {
			s.must("nft", strings.Fields(line)...)
		}
		took := s.eventually(tt.within, tt.what, func() error {
			if now := s.must("nft", "-s", "list", "ruleset"); sorted(now) != sorted(right) {
				return fmt.Errorf("not repaired:\n%s", now)
			}
			return s.reach(clusterIP)
		})
		t.Logf("%s: repaired after %s", tt.what, took.Round(time.Millisecond))
	}
	if doc, err := s.status(); err != nil || doc.Drift == 0 {
		t.Errorf("the status reports no repair: %+v %v", doc, err)
	}
}

// sorted makes two listings comparable, whatever the order of chains, sets and
// elements: what was re-created comes last.
func sorted(listing string) string {
	lines := strings.Split(strings.ReplaceAll(listing, "elements = {", ""), "\n")
	for i := range lines {
		lines[i] = strings.Trim(lines[i], " \t,{}")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

const foreign = `table inet firewall {
	set bad { type ipv4_addr; flags interval; elements = { 198.51.100.0/24 } }
	map ports { type inet_service : verdict; elements = { 22 : accept, 23 : drop } }
	chain input { type filter hook input priority 0; policy accept;
		ip saddr @bad counter drop
		tcp dport vmap @ports
	}
}
table ip nat {
	chain postrouting { type nat hook postrouting priority srcnat; policy accept;
		ip saddr 172.16.0.0/12 masquerade
	}
}
table ip kube-proxy {
	chain services { ip daddr 10.96.0.1 drop
	}
}`

// TestForeignTablesStay checks that a run, a crash, a restart and cleanup leave
// everybody else's tables byte-identical.
func TestForeignTablesStay(t *testing.T) {
	s := newSite(t)
	rules := t.TempDir() + "/foreign.nft"
	if err := os.WriteFile(rules, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must("nft", "-f", rules)
	before := s.must("nft", "-s", "list", "ruleset")
	theirs := func() (all string) {
		for _, table := range []string{"inet firewall", "ip nat", "ip kube-proxy"} {
			all += s.must("nft", append([]string{"-s", "list", "table"}, strings.Fields(table)...)...)
		}
		return all
	}
	was := theirs()
	s.write("", "10.244.1.2", "10.244.1.3")
	s.start()
	if err := s.answers(clusterIP); err != nil {
		t.Fatal(err)
	}
	if now := theirs(); now != was {
		t.Errorf("changed by a run:\n%s", now)
	}
	if out, err := s.run(s.bin, "cleanup"); err == nil {
		t.Errorf("cleanup during a running tandem: %s", out)
	}
	s.kill()
	s.start()
	s.kill()
	if now := theirs(); now != was {
		t.Errorf("changed by a crash and a restart:\n%s", now)
	}
	for range 2 { // the second time there is nothing to do, and that is no error
		s.must(s.bin, "cleanup")
	}
	if after := s.must("nft", "-s", "list", "ruleset"); after != before {
		t.Errorf("after cleanup:\n%s\nbefore:\n%s", after, before)
	}
	if s.reach(clusterIP) == nil {
		t.Error("the Service still answers after cleanup")
	}
}

// TestUDPFlowsFollow keeps one UDP flow going, from one source port, through
// everything that makes it stale.
func TestUDPFlowsFollow(t *testing.T) {
	s := newSite(t)
	at := func(ip string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(ip), 8080) }
	follow := func(what string, to netip.AddrPort, server netip.AddrPort) {
		t.Helper()
		took := s.eventually(time.Second, what, func() error {
			got, err := s.udp(to)
			if err == nil && got != server {
				err = fmt.Errorf("answered by %s, want %s", got, server)
			}
			return err
		})
		t.Logf("%s: the flow follows after %s", what, took.Round(time.Millisecond))
	}
	external := netip.MustParseAddrPort("203.0.113.7:53")

	s.write("", "10.244.1.2")
	s.start()
	follow("start", dnsIP, at("10.244.1.2"))
	s.write("", "10.244.1.3")
	follow("endpoint replaced", dnsIP, at("10.244.1.3"))
	s.write("")
	s.eventually(time.Second, "scaled to zero", func() error {
		if got, err := s.udp(dnsIP); err == nil {
			return fmt.Errorf("still answered by %s", got)
		}
		return nil
	})
	s.write("", "10.244.1.4")
	follow("scaled up again", dnsIP, at("10.244.1.4"))
	if got, err := s.udp(external); err == nil {
		t.Fatalf("answered by %s before there was an external IP", got)
	}
	s.write("  externalIPs: [203.0.113.7]\n", "10.244.1.4")
	follow("external IP added, flow untranslated before", external, at("10.244.1.4"))
	s.put("")
	s.eventually(time.Second, "Service deleted", func() error {
		if got, err := s.udp(dnsIP); err == nil {
			return fmt.Errorf("still answered by %s", got)
		}
		return nil
	})
	s.write("", "10.244.1.2")
	follow("Service made again", dnsIP, at("10.244.1.2"))
}

// TestUDPFlowsThatBeganWithoutRulesFollow reloads the host's firewall under a UDP
// client: what it sends during that time makes a flow that is not translated, and that
// stays for as long as it keeps sending, unless the repair ends it.
func TestUDPFlowsThatBeganWithoutRulesFollow(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2")
	s.start()
	for _, reload := range []string{"flush ruleset", "delete table ip tandem", "flush chain ip tandem prerouting"} {
		s.eventually(time.Second, "the Service answers", func() error { _, err := s.udp(dnsIP); return err })
		s.must("nft", strings.Fields(reload)...)
		s.must("conntrack", "-D", "-p", "udp") // as if the client were a new one
		if got, err := s.udp(dnsIP); err == nil {
			t.Logf("%s: repaired before the client sent anything, answered by %s", reload, got)
		}
		took := s.eventually(5*time.Second, reload, func() error { _, err := s.udp(dnsIP); return err })
		t.Logf("%s: the flow follows after %s", reload, took.Round(time.Millisecond))
	}
}

// TestRestartOnABrokenManifestKeepsWhatWorked restarts tandem after a manifest
// broke: its state is lost, so installed rules stay until the
// folder can be understood again. Could not read is not absent.
func TestRestartOnABrokenManifestKeepsWhatWorked(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2")
	s.start()
	good, err := os.ReadFile(s.dir + "/all.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range []string{"{{{\n" + string(good), ""} {
		s.kill()
		s.put(broken)
		s.start()
		for range 20 { // it has read the folder when it is healthy; nothing comes later
			if _, err := s.status(); err != nil {
				t.Fatal(err)
			}
			if err := s.answers(clusterIP); err != nil {
				t.Fatalf("restarted on a folder that is not whole (%.3q): %v", broken, err)
			}
		}
	}
	s.put("apiVersion: v1\nkind: Service\nmetadata: {name: other}\nspec: {clusterIP: 10.96.0.77, ports: [{port: 80}]}\n")
	s.eventually(5*time.Second, "the folder is whole, and the Service is not in it", func() error {
		if s.reach(clusterIP) == nil {
			return errors.New("it still answers")
		}
		return nil
	})
}
