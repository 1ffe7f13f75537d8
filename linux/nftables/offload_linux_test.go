// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// offloadNode is a node with offload between a client outside and two pods, of which
// the first one is the endpoint of two Services.
type offloadNode struct {
	t        *testing.T
	lab      *netns.Net
	client   netns.Place
	flows    *nft.Offload
	plane    *offload
	web, dns *model.Port
	listener socket // of the endpoint of web
	question socket // of a flow to dns

	counted int // packets that the forward hook had seen when it was asked last
}

// The pods, and the ports of the Services' endpoints in them.
var offloadPods = []netns.Pod{
	{Place: "pod", Interface: "pod0", Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.2")}},
	{Place: "other", Interface: "pod1", Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.3")}},
}

const webPort, dnsPort = 8080, 5353

// newOffloadNode makes the node, with rules and without a flowtable, or skips the test.
func newOffloadNode(t *testing.T) *offloadNode {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	client := netip.MustParseAddr("192.0.2.100")
	lab, err := netns.New(t.Context(), netns.Plan{
		Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{client}, Pods: offloadPods,
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &offloadNode{t: t, lab: lab}
	t.Cleanup(func() { n.must(lab.Close()) })
	n.client, _ = lab.PlaceOf(client)
	n.must(lab.Do(netns.Node, func() (err error) { n.flows, err = nft.OpenOffload(); return err }))
	t.Cleanup(func() { n.must(n.flows.Close()) })
	if err := n.flows.Set(t.Context(), nil); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no flowtables: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	n.must(n.flows.Remove(t.Context()))
	n.web = port("web", front(model.KindExternalIP, "203.0.113.1:80", onAll(balance(onPod(0, webPort), false))))
	n.dns = port("dns", front(model.KindExternalIP, "203.0.113.1:53", onAll(balance(onPod(0, dnsPort), false))))
	n.dns.ID.Proto = model.UDP
	n.open()
	t.Cleanup(func() { n.must(n.plane.Close()) })                // the one that is open by then
	if _, err := n.plane.Backend.Sync(t.Context()); err != nil { // without offload yet
		t.Fatal(err)
	}
	n.nft("table inet watcher { chain forward { type filter hook forward priority -200; counter; }; }")
	return n
}

// onPod returns a pool of one endpoint, in a pod by its number.
func onPod(i int, port uint16) *model.Pool {
	return &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.AddrPortFrom(offloadPods[i].Addrs[0], port), Local: true}}}
}

func (n *offloadNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// open starts a proxy on the node, which has not written yet.
func (n *offloadNode) open() {
	n.t.Helper()
	n.must(n.lab.Do(netns.Node, func() error {
		d, err := Open(Options{})
		if err != nil {
			return err
		}
		b, err := withOffload(dataplane.New(NewCompiler(Options{}), d))
		if err == nil {
			n.plane = b.(*offload)
		}
		return err
	}))
	n.must(n.plane.Adopt(context.Background()))
	n.plane.SetHost(testHost)
	n.plane.Update([]model.Delta{{New: n.web}, {New: n.dns}})
}

// offload has the proxy make its flowtable, and returns the devices once they are all there.
func (n *offloadNode) offload() (devices []string) {
	n.t.Helper()
	if _, err := n.plane.Sync(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		_, devices, err := n.flows.Devices(n.t.Context())
		if err != nil || time.Since(begin) > time.Minute {
			n.t.Fatalf("the flowtable has the devices %v: %v", devices, err)
		}
		if len(devices) == 2+len(offloadPods) {
			return devices
		}
	}
}

// nft runs the nft command on the node.
func (n *offloadNode) nft(args ...string) (out string) {
	n.t.Helper()
	n.must(n.lab.Do(netns.Node, func() error {
		text, err := exec.CommandContext(n.t.Context(), "nft", args...).CombinedOutput()
		if out = string(text); err != nil {
			err = fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return err
	}))
	return out
}

var packetCount = regexp.MustCompile(`packets (\d+)`)

// forwarded returns how many packets the node's forward hook has seen since it was asked
// last.
func (n *offloadNode) forwarded() int {
	n.t.Helper()
	m := packetCount.FindStringSubmatch(n.nft("list", "table", "inet", "watcher"))
	if m == nil {
		n.t.Fatal("the chain has no counter")
	}
	before := n.counted
	n.counted, _ = strconv.Atoi(m[1])
	return n.counted - before
}

// socket is a blocking one, bounded by patient. Go's runtime does not hear of what it reads and writes: what
// that costs is the kernel's, and it takes no time, as both ends are in one thread.
type socket int

// open opens a socket at a place, which listens at an address there.
func (n *offloadNode) listen(at netns.Place, kind int, addr netip.AddrPort) socket {
	return n.socket(at, kind, func(fd int, a unix.Sockaddr) error {
		err := unix.Bind(fd, a)
		if err == nil && kind == unix.SOCK_STREAM {
			err = unix.Listen(fd, 8)
		}
		return err
	}, addr)
}

// dial opens a socket of the client that is connected to a Service.
func (n *offloadNode) dial(kind int, to netip.AddrPort) socket {
	return n.socket(n.client, kind, unix.Connect, to)
}

func (n *offloadNode) socket(at netns.Place, kind int, use func(int, unix.Sockaddr) error, addr netip.AddrPort) (s socket) {
	n.t.Helper()
	n.must(n.lab.Do(at, func() error {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		s = socket(fd)
		return errors.Join(patient(fd), use(fd, address(addr)))
	}))
	n.t.Cleanup(func() { _ = unix.Close(int(s)) })
	return s
}

func (s socket) accept() (socket, error) {
	fd, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(s), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return socket(fd), nil
}

func (s socket) write() error { return s.move(unix.SYS_WRITE, 1) }

func (s socket) read() error { return s.move(unix.SYS_READ, 1) }

func (s socket) close() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(s), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// move writes or reads a byte, and checks how many the kernel took or had.
func (s socket) move(call uintptr, want uintptr) error {
	var b byte
	n, _, errno := unix.RawSyscall(call, uintptr(s), uintptr(unsafe.Pointer(&b)), 1)
	switch {
	case errno != 0:
		return errno
	case n != want:
		return fmt.Errorf("%d bytes, want %d", n, want)
	}
	return nil
}

// operation is what a client and an endpoint do with one another.
type operation struct {
	name    string
	packets int // of it that are forwarded without a flowtable
	do      func() error
}

// operations are those that offload is for: a round trip of a byte over a connection, and
// a datagram of a flow.
func (n *offloadNode) operations() []operation {
	n.t.Helper()
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(offloadPods[0].Addrs[0], port) }
	listener, names := n.listen("pod", unix.SOCK_STREAM, at(webPort)), n.listen("pod", unix.SOCK_DGRAM, at(dnsPort))
	web, dns := n.web.Frontends[0].At, n.dns.Frontends[0].At
	client, question := n.dial(unix.SOCK_STREAM, web), n.dial(unix.SOCK_DGRAM, dns)
	n.listener, n.question = listener, question
	server, err := listener.accept()
	n.must(err)
	n.t.Cleanup(func() { _ = server.close() })
	n.must(errors.Join(question.write(), n.answer(names), question.read())) // a flow has both directions
	return []operation{
		{"a TCP round trip", 2, func() error {
			return errors.Join(client.write(), server.read(), server.write(), client.read())
		}},
		{"a UDP packet", 1, func() error { return errors.Join(question.write(), names.read()) }},
	}
}

func address(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// patient bounds how long reads of a socket wait.
func patient(fd int) error {
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60})
}

// answer answers a datagram.
func (n *offloadNode) answer(s socket) error {
	b := make([]byte, 1)
	_, from, err := unix.Recvfrom(int(s), b, 0)
	if err != nil {
		return err
	}
	return unix.Sendto(int(s), b, 0, from)
}

// offloadTimes is how often an operation is done at a time.
const offloadTimes = 100

// median does an operation and returns its median time. In a guest without KVM time is
// instructions, of 4 ns each; in the median are neither ticks of the timer nor the work
// of other threads, which fall into few of the operations.
func (n *offloadNode) median(o operation) time.Duration {
	n.t.Helper()
	took := make([]time.Duration, offloadTimes)
	n.must(n.lab.Do(n.client, func() error {
		for i := range took {
			begin := time.Now()
			if err := o.do(); err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
			took[i] = time.Since(begin)
		}
		return nil
	}))
	slices.Sort(took)
	return took[offloadTimes/2]
}

// With a flowtable the forward hook sees the packets of established connections to
// Services no more, and connections survive that it comes and goes. Times are shown, and not
// judged: also where time is instructions, a datagram takes one of two medians, as it does
// or does not wake a thread of the kernel (56 or 87 us; a round trip 143 every time).
func TestOffload(t *testing.T) {
	n := newOffloadNode(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	operations := n.operations()
	devices := n.offload()
	for _, o := range operations {
		a, b := n.compare(o, devices)
		t.Logf("%s takes %v, with a flowtable %v (%+.1f %%)", o.name, a, b, 100*float64(b-a)/float64(a))
	}
}

// compare does an operation without a flowtable and with one, in turn, and returns the
// medians of the times.
func (n *offloadNode) compare(o operation, devices []string) (without, with time.Duration) {
	n.t.Helper()
	const pairs = 3
	var took [2][]time.Duration
	for range pairs {
		n.must(n.flows.Remove(n.t.Context()))
		n.forwarded()
		took[0] = append(took[0], n.median(o))
		if got := n.forwarded(); got < o.packets*offloadTimes {
			n.t.Errorf("%s: %d packets are forwarded %d times without a flowtable", o.name, got, offloadTimes)
		}
		n.must(n.flows.Set(n.t.Context(), devices))
		took[1] = append(took[1], n.median(o))
		if got := n.forwarded(); got > offloadTimes/10 {
			n.t.Errorf("%s: %d packets are forwarded %d times with a flowtable", o.name, got, offloadTimes)
		}
	}
	n.t.Logf("%s: pairs of medians %v", o.name, took)
	slices.Sort(took[0])
	slices.Sort(took[1])
	return took[0][pairs/2], took[1][pairs/2]
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
