// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// TestMain runs the tests again in a user namespace where that is needed.
func TestMain(m *testing.M) {
	const again = "TANDEM_TEST_IN_USER_NAMESPACE"
	if Available() == nil || os.Getenv(again) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), again+"=1")
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, UserNamespace()
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Printf("no user namespace either: %v\n", err)
		os.Exit(m.Run())
	}
}

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func network(t *testing.T) *Net {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	n, err := New(t.Context(), plan())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func serve(t *testing.T, n *Net, proto model.Proto, servers ...string) {
	t.Helper()
	for _, s := range servers {
		place, ok := n.PlaceOf(at(s).Addr())
		if !ok {
			t.Fatalf("%s is nowhere", s)
		}
		if _, err := n.Serve(place, at(s), proto); errors.Is(err, ErrNoSCTP) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// nft loads rules on the node.
func nft(t *testing.T, n *Net, rules string) {
	t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("the test's own rules need the nft command: ", err)
	}
	err = n.Do(Node, func() error {
		cmd := exec.Command(path, "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, n *Net, from Place, src string, proto model.Proto, to string) Answer {
	t.Helper()
	c := Call{From: from, Proto: proto, To: at(to), Timeout: 30 * time.Second}
	if src != "" {
		c.Src = addr(src)
	}
	a, err := n.Dial(c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestReach calls every server from everywhere, without a proxy.
func TestReach(t *testing.T) {
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		t.Run(proto.String(), func(t *testing.T) {
			n := network(t)
			servers := []string{
				"10.244.1.2:8080", "192.0.2.1:9000", "10.244.2.2:8080", "192.0.2.2:9000", "198.51.100.7:8080",
				"[fd00:10:244:1::2]:8080", "[2001:db8::1]:9000", "[fd00:10:244:2::2]:8080", "[2001:db8::100]:8080",
			}
			serve(t, n, proto, servers...)
			for from, srcs := range n.plan.all {
				for _, src := range srcs {
					for _, to := range servers {
						if src.Is4() != at(to).Addr().Is4() {
							continue
						}
						a := dial(t, n, from, src.String(), proto, to)
						if a.Outcome != Answered || a.Server != at(to) || a.Client.Addr() != src {
							t.Errorf("%s to %s: %+v", src, to, a)
						}
					}
				}
			}
		})
	}
}

func TestRefusedAndSilent(t *testing.T) {
	n := network(t)
	serve(t, n, model.SCTP, "192.0.2.1:9000")
	nft(t, n, `table inet t {
		chain pre { type filter hook prerouting priority 0; ip daddr 10.96.0.1 reject; ip6 daddr fd00:10:96::1 reject; ip daddr 10.96.0.2 drop; ip6 daddr fd00:10:96::2 drop; }
		chain out { type filter hook output priority 0; ip daddr 10.96.0.1 reject; ip6 daddr fd00:10:96::1 reject; ip daddr 10.96.0.2 drop; ip6 daddr fd00:10:96::2 drop; }
	}`)
	var calls sync.WaitGroup
	defer calls.Wait()
	check := func(proto model.Proto, from Place, to string, want Outcome) {
		timeout := 400 * time.Millisecond
		if want == Refused {
			timeout = 30 * time.Second // seldom only the second packet is reported, see reportICMP
		}
		a, err := n.Dial(Call{From: from, Proto: proto, To: at(to), Timeout: timeout})
		if err != nil || a.Outcome != want {
			t.Errorf("%s from %s to %s: %s, want %s (%v)", proto, from, to, a.Outcome, want, err)
		}
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		for _, from := range []Place{"client", Node, Outside, Others} {
			for to, want := range map[string]Outcome{
				"10.96.0.1:80": Refused, "[fd00:10:96::1]:80": Refused,
				"10.96.0.2:80": TimedOut, "[fd00:10:96::2]:80": TimedOut,
				"10.96.0.3:80": TimedOut, "[fd00:10:96::3]:80": TimedOut, // routed outside, where no host has it
			} {
				calls.Go(func() { check(proto, from, to, want) })
			}
		}
	}
	if a := dial(t, n, Outside, "", model.TCP, "192.0.2.1:81"); a.Outcome != Refused {
		t.Errorf("a closed port of the node: %s", a.Outcome)
	}
}

// TestALostRejectIsAskedForAgain: the kernel does not send every ICMP message, and nobody but the client can
// send a datagram again. A reject that never comes is still an error.
func TestALostRejectIsAskedForAgain(t *testing.T) {
	n := network(t)
	nft(t, n, `table ip t {
		chain pre { type filter hook prerouting priority 0; ip daddr 10.96.0.1 udp dport 80 numgen inc mod 3 vmap { 0 : drop, 1 : drop }; ip daddr 10.96.0.1 reject; ip daddr 10.96.0.2 drop; }
	}`)
	for to, want := range map[string]string{"10.96.0.1:80": "", "10.96.0.2:80": "want reject, got timed out"} {
		c := Check{Src: addr("10.244.1.10"), Proto: model.UDP, To: at(to), Want: oracle.Outcome{Fate: oracle.Reject}, Patience: 3 * time.Second}
		if wrong, err := c.Run(n); err != nil || wrong != want {
			t.Errorf("%s: %q, want %q (%v)", to, wrong, want, err)
		}
	}
}

// TestTranslated shows that hand-written rules have the effect they should:
// each endpoint reached, the client kept or masqueraded, hairpin included.
func TestTranslated(t *testing.T) {
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		t.Run(proto.String(), func(t *testing.T) {
			n := network(t)
			serve(t, n, proto, "10.244.1.2:8080", "10.244.2.2:8080", "[fd00:10:244:1::2]:8080")
			nft(t, n, strings.ReplaceAll(`table inet t {
				chain vips {
					ip daddr 10.96.0.1 PROTO dport 80 dnat ip to numgen inc mod 2 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080 }
					ip6 daddr fd00:10:96::1 PROTO dport 80 dnat ip6 to [fd00:10:244:1::2]:8080
				}
				chain pre { type nat hook prerouting priority -100; jump vips; }
				chain out { type nat hook output priority -100; jump vips; }
				chain post { type nat hook postrouting priority 100; ip saddr 192.0.2.100 masquerade; ip6 saddr 2001:db8::100 masquerade; ip saddr 10.244.1.2 ip daddr 10.244.1.2 masquerade; }
			}`, "PROTO", proto.String()))
			for _, c := range []struct{ from, src, sees string }{
				{"client", "10.244.1.10", "10.244.1.10"},
				{"node", "192.0.2.1", "192.0.2.1"},
				{"outside", "192.0.2.100", "192.0.2.1"},
				{"outside", "198.51.100.7", "198.51.100.7"},
				{"others", "192.0.2.2", "192.0.2.2"},
			} {
				seen := map[string]int{}
				for range 6 {
					a := dial(t, n, Place(c.from), c.src, proto, "10.96.0.1:80")
					seen[a.Server.String()]++
					if a.Outcome != Answered || a.Client.Addr() != addr(c.sees) {
						t.Fatalf("from %s: %+v", c.src, a)
					}
				}
				if seen["10.244.1.2:8080"] != 3 || seen["10.244.2.2:8080"] != 3 {
					t.Errorf("from %s: %v", c.src, seen)
				}
			}
			for range 4 {
				a := dial(t, n, "a", "10.244.1.2", proto, "10.96.0.1:80")
				if want := map[bool]string{true: "192.0.2.1", false: "10.244.1.2"}[a.Server.Addr() == addr("10.244.1.2")]; a.Client.Addr() != addr(want) {
					t.Errorf("hairpin: %+v", a)
				}
			}
			a := dial(t, n, Outside, "2001:db8::100", proto, "[fd00:10:96::1]:80")
			if a.Server != at("[fd00:10:244:1::2]:8080") || a.Client.Addr() != addr("2001:db8::1") {
				t.Errorf("IPv6: %+v", a)
			}
		})
	}
}

func TestManyConnectionsQuickly(t *testing.T) {
	n := network(t)
	serve(t, n, model.TCP, "10.244.1.2:8080")
	const count = 1000
	start := time.Now()
	for i := range count {
		if a := dial(t, n, Outside, "192.0.2.100", model.TCP, "10.244.1.2:8080"); a.Outcome != Answered {
			t.Fatalf("connection %d: %s", i, a.Outcome)
		}
	}
	t.Logf("%d connections, %s each", count, time.Since(start)/count)
}

func TestConnectionsStay(t *testing.T) {
	n := network(t)
	serve(t, n, model.TCP, "10.244.1.2:8080")
	c, err := n.Connect(Call{From: Outside, Proto: model.TCP, To: at("10.244.1.2:8080"), Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		if a, err := Ask(c, 30*time.Second); err != nil || a.Outcome != Answered {
			t.Fatal(a, err)
		}
	}
	nft(t, n, "table inet t { chain f { type filter hook forward priority 0; drop; }; }")
	if a, err := Ask(c, 200*time.Millisecond); err != nil || a.Outcome != TimedOut {
		t.Error(a, err)
	}
}

// TestNothingIsLeft counts descriptors, and looks at the thread's namespace.
func TestNothingIsLeft(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	before, home := descriptors(t), interfaces(t)
	for range 3 {
		n, err := New(t.Context(), plan())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Serve("a", at("10.244.1.2:8080"), model.TCP); err != nil {
			t.Error(err)
		}
		if err := errors.Join(n.Close(), n.Close()); err != nil {
			t.Error(err)
		}
		if err := n.Do(Node, func() error { return nil }); !errors.Is(err, ErrClosed) {
			t.Errorf("Do after Close: %v", err)
		}
		if _, err := n.Serve("a", at("10.244.1.2:8080"), model.TCP); !errors.Is(err, ErrClosed) {
			t.Errorf("Serve after Close: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(ctx, plan()); !errors.Is(err, context.Canceled) {
		t.Errorf("New with an ended context: %v", err)
	}
	p := plan()
	p.Pods[2].Interface = "no/name" // the kernel refuses it
	if _, err := New(t.Context(), p); err == nil {
		t.Error("an impossible interface name was accepted")
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if after := interfaces(t); after != home {
		t.Errorf("interfaces here: %q before, %q after", home, after)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func interfaces(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return strings.Join(names, " ")
}

// A network around a node that was there before uses its routes, and leaves its links
// and addresses as they were, also when it fails half-way.
func TestAroundTheNodeThatIsHere(t *testing.T) {
	outer := network(t)
	here := func() Plan {
		return Plan{
			Here: true, Prefix: "test-", Node: plan().Node, Outside: []netip.Addr{netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8:18::1")},
			Pods: []Pod{{Place: "guest", Interface: "test-0", Addrs: []netip.Addr{netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("2001:db8:19::1")}}},
		}
	}
	links := func() (names string) {
		if err := outer.Do(Node, func() error { names = interfaces(t); return nil }); err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := links()
	var inner *Net
	if err := outer.Do(Node, func() (err error) { inner, err = New(t.Context(), here()); return err }); err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	for _, server := range []string{"198.18.1.1:80", "[2001:db8:19::1]:80"} {
		if _, err := inner.Serve("guest", at(server), model.TCP); err != nil {
			t.Fatal(err)
		}
		for _, from := range []Place{Outside, Node, "guest"} {
			if a := dial(t, inner, from, "", model.TCP, server); a.Outcome != Answered {
				t.Errorf("from %s to %s: %s", from, server, a.Outcome)
			}
		}
	}
	if during := links(); !strings.Contains(during, "test-eth0") || !strings.Contains(during, "test-0") {
		t.Errorf("links of the node: %s", during)
	}
	if err := inner.Close(); err != nil {
		t.Error(err)
	}
	broken := here()
	broken.Pods[0].Interface = "no/name"
	if err := outer.Do(Node, func() error { _, err := New(t.Context(), broken); return err }); err == nil {
		t.Error("an impossible interface name was accepted")
	}
	if after := links(); after != before {
		t.Errorf("links before: %s, after: %s", before, after)
	}
}
