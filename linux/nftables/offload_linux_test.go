// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// socketOf returns a blocking descriptor of a connection: the cost of a round trip is to be
// the kernel's.
func socketOf(t *testing.T, c net.Conn) int {
	t.Helper()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	fd := int(f.Fd())
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return fd
}

// How many round trips are made at a time, and in how many rounds.
const tripsMade, tripsRounds = 2000, 10

// trips makes round trips over a connection, each of a byte, and returns what one takes
// in the least of some rounds. In a guest without KVM time is instructions. One thread
// is both ends, as the byte is there when the write returns: with a goroutine at each
// end the figures hang on how Go's scheduler hands its only processor over (192 or
// 208 us for the same round trip).
func trips(t *testing.T, client, server int) (least time.Duration) {
	t.Helper()
	b := []byte{1}
	for range tripsRounds {
		begin := time.Now()
		for range tripsMade / tripsRounds {
			for _, way := range [][2]int{{client, server}, {server, client}} {
				_, wrote := unix.Write(way[0], b)
				n, read := unix.Read(way[1], b)
				if err := errors.Join(wrote, read); err != nil || n != 1 {
					t.Fatalf("the connection has broken: %d bytes, %v", n, err)
				}
			}
		}
		if took := time.Since(begin) / (tripsMade / tripsRounds); least == 0 || took < least {
			least = took
		}
	}
	return least
}

// With a flowtable the forward hook sees the packets of an established connection to a
// Service no more. The connection survives that it comes and goes, and devices that come
// later are followed. What it takes off a round trip is shown, not judged: in the same
// guest that is 5 to 21 %, as the processor's time goes to other work of the kernel too.
func TestOffload(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pod, node, client := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.100")
	lab, err := netns.New(t.Context(), netns.Plan{
		Node: []netip.Addr{node}, Outside: []netip.Addr{client},
		Pods: []netns.Pod{{Place: "pod", Interface: "pod0", Addrs: []netip.Addr{pod}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	var listener net.Listener
	if err := lab.Do("pod", func() (err error) { listener, err = net.Listen("tcp", "10.244.1.2:8080"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var plane dataplane.Backend
	var flows *nft.Offload
	err = lab.Do(netns.Node, func() error {
		d, err := Open(Options{})
		if err != nil {
			return err
		}
		if flows, err = nft.OpenOffload(); err != nil {
			return err
		}
		plane, err = withOffload(dataplane.New(NewCompiler(Options{}), d))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	o := plane.(*offload)
	t.Cleanup(func() {
		if err := errors.Join(plane.Close(), flows.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := flows.Set(t.Context(), nil); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no flowtables: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := flows.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.AddrPortFrom(pod, 8080), Local: true}}}
	p := port("web", model.Frontend{Kind: model.KindExternalIP, At: netip.MustParseAddrPort("203.0.113.1:80"), On: onAll(balance(pool, false))})
	if err := plane.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	plane.SetHost(testHost)
	plane.Update([]model.Delta{{New: p}})
	if _, err := o.Backend.Sync(t.Context()); err != nil { // without offload yet
		t.Fatal(err)
	}
	at, _ := lab.PlaceOf(client)
	c, err := lab.Connect(netns.Call{From: at, Src: client, Proto: model.TCP, To: p.Frontends[0].At, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	server, fd := socketOf(t, s), socketOf(t, c)
	forwarded := countForwarded(t, lab)
	without := trips(t, fd, server)
	if got := forwarded(); got < 2*tripsMade {
		t.Fatalf("%d packets of %d round trips are forwarded without a flowtable", got, tripsMade)
	}
	if _, err := plane.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	listed := func() (devices []string) {
		_, devices, err := flows.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return devices
	}
	for begin := time.Now(); len(listed()) < 2; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("the flowtable has the devices %v", listed())
		}
	}
	devices := listed()
	forwarded()
	for round := range 5 {
		with := trips(t, fd, server)
		if got := forwarded(); got > tripsMade/100 {
			t.Errorf("round %d: %d packets of %d round trips are forwarded with the flowtable", round, got, tripsMade)
		}
		t.Logf("a round trip takes %v, with a flowtable %v (%+.1f %%)", without, with, 100*float64(with-without)/float64(without))
		if err := flows.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		without = trips(t, fd, server)
		if got := forwarded(); got < 2*tripsMade {
			t.Errorf("round %d: %d packets of %d round trips are forwarded when the flowtable has gone", round, got, tripsMade)
		}
		if err := flows.Set(t.Context(), devices); err != nil {
			t.Fatal(err)
		}
	}
}

// countForwarded counts the packets that the node's forward hook sees, and returns how
// many have come since it was asked last.
func countForwarded(t *testing.T, lab *netns.Net) (since func() int) {
	t.Helper()
	nft := func(args ...string) (out []byte) {
		t.Helper()
		err := lab.Do(netns.Node, func() (err error) {
			out, err = exec.CommandContext(t.Context(), "nft", args...).CombinedOutput()
			return err
		})
		if err != nil {
			t.Fatalf("nft %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return out
	}
	nft("table inet watcher { chain forward { type filter hook forward priority -200; counter; }; }")
	count := regexp.MustCompile(`packets (\d+)`)
	before := 0
	return func() int {
		t.Helper()
		m := count.FindSubmatch(nft("list", "table", "inet", "watcher"))
		if m == nil {
			t.Fatal("the chain has no counter")
		}
		now, _ := strconv.Atoi(string(m[1]))
		n := now - before
		before = now
		return n
	}
}

// A subscription to devices ends when notices are lost: it is made again after a pause.
func TestOffloadSubscribesAgain(t *testing.T) {
	ns, err := host.OpenNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ended := make(chan netlink.LinkUpdate)
	close(ended)
	o := &offload{ns: ns, events: ended, unwatch: make(chan struct{})}
	begin := time.Now()
	if !o.wait(t.Context(), nil) || o.events != nil || time.Since(begin) < time.Second {
		t.Fatalf("after %v: the subscription is %v", time.Since(begin), o.events)
	}
	if err := o.watch(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { o.stopWatching(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("the subscription does not end")
	}
}
