// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// fate counts what leaves a node: packets to an endpoint, and packets whose
// destination is still the Service's. All are new connections, since none of them
// gets as far as to be confirmed.
const fate = `table ip fate {
	chain leaving {
		type filter hook postrouting priority 300
		ip daddr 10.96.0.10 counter drop
		ip daddr 10.244.0.0/16 counter drop
	}
}`

var fateCount = regexp.MustCompile(`daddr (\S+) counter packets (\d+)`)

// fates reads the counters of fate. It runs in the node.
func fates(t testing.TB) (leaked, balanced int) {
	for _, m := range fateCount.FindAllStringSubmatch(runNFT(t, "", "list", "table", "ip", "fate"), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if m[1] == "10.96.0.10" {
			leaked = n
		} else {
			balanced = n
		}
	}
	return leaked, balanced
}

// scaling is a node with one Service, as the proxy programs it, and a socket that
// sends first packets to the Service.
type scaling struct {
	t       *testing.T
	net     *netns.Net
	driver  *Driver
	backend dataplane.Backend
	port    *model.Port
	raw     int
}

// newScaling makes a node that serves n endpoints behind 10.96.0.10:80 and further frontends.
func newScaling(t *testing.T, n int, fronts ...string) *scaling {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	net, err := netns.New(t.Context(), netns.Plan{
		Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = net.Close() })
	s := &scaling{t: t, net: net, port: port("web", front(model.KindExternalIP, "10.96.0.10:80", onAll(drop)))}
	s.port.ID.Proto = model.UDP
	s.do(func() {
		runNFT(t, fate, "-f", "-")
		s.driver = openDriver(t)
		if s.raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = unix.Close(s.raw) })
	for _, at := range fronts {
		s.port.Frontends = append(s.port.Frontends, front(model.KindExternalIP, at, onAll(drop)))
	}
	s.backend = newBackend(NewCompiler(Options{}), s.driver)
	if err := s.backend.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.backend.SetHost(testHost)
	s.scale(n)
	return s
}

func (s *scaling) do(f func()) {
	s.t.Helper()
	if err := s.net.Do(netns.Node, func() error { f(); return nil }); err != nil {
		s.t.Fatal(err)
	}
}

// scale gives the Service n endpoints.
func (s *scaling) scale(n int) {
	s.t.Helper()
	pool := &model.Pool{}
	for i := range n {
		pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)})
	}
	next := *s.port
	next.Frontends = slices.Clone(s.port.Frontends)
	for i := range next.Frontends {
		next.Frontends[i].On = onAll(balance(pool, false))
	}
	old := s.port
	if old.Frontends[0].On[0].Verdict == model.Drop {
		old = nil
	}
	s.backend.Update([]model.Delta{{Old: old, New: &next}})
	s.port = &next
	if _, err := s.backend.Sync(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// send sends n packets from the node to the Service.
func (s *scaling) send(n int) {
	packet := []byte{
		0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 192, 0, 2, 1, 10, 96, 0, 10,
		0x30, 0x39, 0, 80, 0, 8, 0, 0,
	}
	for range n {
		// EPERM: a rule dropped it.
		if err := unix.Sendto(s.raw, packet, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 96, 0, 10}}); err != nil && !errors.Is(err, unix.EPERM) {
			s.t.Error(err)
			return
		}
	}
}

// while sends packets while f runs, and returns their fates: each must go to
// an endpoint.
func (s *scaling) while(what string, f func()) {
	s.t.Helper()
	var before int
	s.do(func() { _, before = fates(s.t) })
	stop, sent := atomic.Bool{}, make(chan int)
	go func() {
		n := 0
		for ; !stop.Load(); n += 100 {
			s.send(100)
		}
		sent <- n
	}()
	func() {
		defer stop.Store(true) // also when f fails
		f()
	}()
	n := <-sent
	s.do(func() {
		leaked, balanced := fates(s.t)
		s.t.Logf("%s: %d packets sent, %d to endpoints, %d leaked", what, n, balanced-before, leaked)
		if leaked > 0 || balanced-before != n {
			s.t.Errorf("%s: of %d packets %d went to endpoints, %d left with the Service's address", what, n, balanced-before, leaked)
		}
	})
}

// A packet that finds no slot under its number goes to the pool's first one, and
// where there is none it is dropped. It never leaves with the Service's address.
func TestMissingSlot(t *testing.T) {
	s := newScaling(t, 64)
	slot := func(i int) nft.Op {
		k := nft.AddrPortKey(setSlots, model.UDP, s.port.Frontends[0].At)
		k.Slot = uint16(i)
		return nft.Op{Verb: ledger.Delete, Key: k}
	}
	check := func(what string, want int) {
		t.Helper()
		var before, after, leaked int
		s.do(func() { _, before = fates(t) })
		s.send(200)
		s.do(func() { leaked, after = fates(t) })
		if leaked > 0 || after-before != want {
			t.Errorf("%s: of 200 packets %d went to endpoints, want %d, and %d left with the Service's address", what, after-before, want, leaked)
		}
	}
	check("all slots", 200)
	for i := 1; i < 64; i++ {
		mustCommit(t, s.driver, []nft.Op{slot(i)})
	}
	check("only the first slot", 200)
	mustCommit(t, s.driver, []nft.Op{slot(0)})
	check("no slot", 0)
}

// While a Service is scaled down and up, every packet goes to an endpoint: also
// one that takes its verdict before a commit and its slot after it.
func TestScaleDownLeaksNothing(t *testing.T) {
	s := newScaling(t, 64)
	s.while("64 to 1 endpoints and back", func() {
		for start := time.Now(); time.Since(start) < 2*time.Second; {
			s.scale(1)
			s.scale(64)
		}
	})
}

// Each number of endpoints has a chain of its own. Packets that meet one as it is
// made find its rules.
func TestNewChainsLeakNothing(t *testing.T) {
	s := newScaling(t, 1)
	s.while("1 to 1000 endpoints", func() {
		for n := 2; n <= 1000; n++ {
			s.scale(n)
		}
	})
}

// Without privileges over the host a socket's send buffer is small. A port that
// needs more is programmed in several transactions, and packets find their slots
// after each of them.
func TestRootlessLargePort(t *testing.T) {
	const again = "TANDEM_TEST_ROOTLESS"
	if os.Getenv(again) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env, cmd.SysProcAttr = append(os.Environ(), again+"=1"), netns.UserNamespace()
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		switch {
		case err != nil && !errors.As(err, &exit):
			t.Skipf("no user namespace: %v", err)
		case err != nil:
			t.Errorf("%v\n%s", err, out)
		default:
			t.Logf("%s", out)
		}
		return
	}
	const endpoints = 10000
	s := newScaling(t, 1, "10.96.0.11:80")
	shrink(t, s.driver, 212992/2) // as most systems have it
	s.scale(endpoints)
	s.while("10000 to 5000 endpoints and back", func() {
		for range 3 {
			s.scale(endpoints / 2)
			s.scale(endpoints)
		}
	})
	want := compile(t, testHost, s.port)
	for _, lingering := range []uint32{1, endpoints / 2} {
		p := pick{slots: setSlots, class: noSNAT, count: lingering}
		want[nft.ChainKey(model.IPv4, p.name())] = NewCompiler(Options{}).pick(p).bodies[model.IPv4]
	}
	mustHave(t, s.driver, want)
}
