// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/conntrack"
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
	stale    *conntrack.Table

	webs, names []socket // of the endpoints in the pods
	question    socket   // of a flow to dns
	counted     int      // packets that the forward hook had seen when it was asked last
	offloaded   bool     // the proxy has a flowtable, or is to make one
	devices     int      // pairs of them that have come since
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
	n.must(lab.Do(netns.Node, func() (err error) { n.stale, err = conntrack.Open(); return err }))
	t.Cleanup(func() { n.must(n.stale.Close()) })
	n.web, n.dns = servedBy(0)
	n.open()
	t.Cleanup(func() { n.must(n.plane.Close()) }) // the one that is open by then
	n.sync()
	n.nft("table inet watcher { chain forward { type filter hook forward priority -200; counter; }; }")
	return n
}

// servedBy returns the ports of the Services, with endpoints in pods by their numbers.
func servedBy(pods ...int) (web, dns *model.Port) {
	on := func(port uint16) model.Action {
		pool := &model.Pool{}
		for _, i := range pods {
			pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: inPod(i, port), Local: true})
		}
		return balance(pool, false)
	}
	web = port("web", front(model.KindExternalIP, "203.0.113.1:80", onAll(on(webPort))))
	dns = port("dns", front(model.KindExternalIP, "203.0.113.1:53", onAll(on(dnsPort))))
	dns.ID.Proto = model.UDP
	return web, dns
}

func inPod(i int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(offloadPods[i].Addrs[0], port)
}

// serve gives the Services the endpoints in these pods, and deletes the flows that are
// stale then, as the proxy does.
func (n *offloadNode) serve(pods ...int) {
	n.t.Helper()
	web, dns := servedBy(pods...)
	changes := []model.Delta{{Old: n.web, New: web}, {Old: n.dns, New: dns}}
	n.web, n.dns = web, dns
	n.plane.Update(changes)
	n.sync()
	stale := flows.Stale(testHost, changes)
	_, err := n.stale.Delete(n.t.Context(), stale, flowtest.IndexOf(stale).Stale)
	n.must(err)
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
		b, err := withOffload(dataplane.New(NewCompiler(Options{}), d), slog.New(slog.DiscardHandler))
		if err == nil {
			n.plane = b.(*offload)
		}
		return err
	}))
	n.must(n.plane.Adopt(context.Background()))
	n.plane.SetHost(testHost)
	n.plane.Update([]model.Delta{{New: n.web}, {New: n.dns}})
}

// sync has the proxy write what has changed, and begin with offload if it is to.
func (n *offloadNode) sync() {
	n.t.Helper()
	var plane dataplane.Backend = n.plane
	if !n.offloaded {
		plane = n.plane.Backend
	}
	_, err := plane.Sync(n.t.Context())
	n.must(err)
}

// offload has the proxy make its flowtable, and waits until all devices are in it.
func (n *offloadNode) offload() {
	n.t.Helper()
	n.offloaded = true
	n.sync()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		_, devices, err := n.flows.Devices(n.t.Context())
		if err != nil || time.Since(begin) > time.Minute {
			n.t.Fatalf("the flowtable has the devices %v: %v", devices, err)
		}
		if len(devices) == 2+len(offloadPods)+2*n.devices {
			return
		}
	}
}

// unattended returns the devices of the flowtable, which from now on the proxy does not
// make again when devices change.
func (n *offloadNode) unattended() []string {
	n.t.Helper()
	n.plane.end()
	_, devices, err := n.flows.Devices(n.t.Context())
	n.must(err)
	return devices
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

// end waits until the other side has closed.
func (s socket) end() error { return s.move(unix.SYS_READ, 0) }

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
	packets int // of it that the forward hook sees without a flowtable, at least
	do      func() error
}

// operations are those that offload is for: a round trip of a byte over a connection, and
// a datagram of a flow. The first pod has the endpoints.
func (n *offloadNode) operations() []operation {
	n.t.Helper()
	for i, pod := range offloadPods {
		n.webs = append(n.webs, n.listen(pod.Place, unix.SOCK_STREAM, inPod(i, webPort)))
		n.names = append(n.names, n.listen(pod.Place, unix.SOCK_DGRAM, inPod(i, dnsPort)))
	}
	client := n.dial(unix.SOCK_STREAM, n.web.Frontends[0].At)
	n.question = n.dial(unix.SOCK_DGRAM, n.dns.Frontends[0].At)
	server, err := n.webs[0].accept()
	n.must(err)
	n.t.Cleanup(func() { _ = server.close() })
	n.ask(0) // a flow has both directions
	return []operation{
		{"a TCP round trip", 2, func() error {
			return errors.Join(client.write(), server.read(), server.write(), client.read())
		}},
		{"a UDP packet", 1, func() error { return errors.Join(n.question.write(), n.names[0].read()) }},
	}
}

// connection is a short one: a byte each way. It is in the client's namespace.
func (n *offloadNode) connection() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	client := socket(fd)
	err = errors.Join(patient(fd), unix.Connect(fd, address(n.web.Frontends[0].At)))
	server, refused := n.webs[0].accept()
	return errors.Join(err, refused, client.write(), server.read(), server.write(), client.read(), client.close(), server.end(), server.close())
}

// ask has a datagram of the flow answered by the endpoint in a pod.
func (n *offloadNode) ask(pod int) {
	n.t.Helper()
	n.must(errors.Join(n.question.write(), n.answer(n.names[pod]), n.question.read()))
}

func address(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// patient bounds how long a socket waits for what it reads, accepts or connects to.
func patient(fd int) error {
	wait := &unix.Timeval{Sec: 60}
	return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, wait), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, wait))
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

// effort is what doing an operation offloadTimes times takes. In a guest without KVM time is
// instructions, of 4 ns each. In the median are neither ticks of the timer nor the work of
// other threads that falls into few of the operations; the mean has all of it.
type effort struct {
	median, mean time.Duration
	seen         int // packets by the forward hook
}

func (n *offloadNode) repeat(o operation) (c effort) {
	n.t.Helper()
	n.forwarded()
	took, all := make([]time.Duration, offloadTimes), time.Duration(0)
	n.must(n.lab.Do(n.client, func() error {
		for i := range took {
			begin := time.Now()
			if err := o.do(); err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
			took[i] = time.Since(begin)
			all += took[i]
		}
		return nil
	}))
	slices.Sort(took)
	return effort{took[offloadTimes/2], all / offloadTimes, n.forwarded()}
}

// long does operations of an established connection or flow, and checks that the forward
// hook sees their packets, or hardly any if they are to go past it.
func (n *offloadNode) long(when string, past bool, operations ...operation) {
	n.t.Helper()
	for _, o := range operations {
		seen := n.repeat(o).seen
		if all := o.packets * offloadTimes; past && seen > all/10 || !past && seen < all {
			n.t.Errorf("%s: the forward hook sees %d packets of %d times %s", when, seen, offloadTimes, o.name)
		}
	}
}

// With a flowtable the forward hook sees the packets of established connections to
// Services no more, and those of a short connection at its ends only. What that takes is
// shown, and judged only where time is instructions, but for a datagram: that has one of two
// medians even there, with and without a flowtable, 8,000 instructions apart.
func TestOffload(t *testing.T) {
	n := newOffloadNode(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	long := n.operations()
	n.offload()
	roundTrip, datagram := n.compare(long[0]), n.compare(long[1])
	for _, c := range [][2]effort{roundTrip, datagram} {
		if c[1].seen > c[0].seen/10 {
			t.Errorf("the forward hook sees %d packets, with a flowtable %d", c[0].seen, c[1].seen)
		}
	}
	short := n.compare(operation{"a short connection", 9, n.connection})
	if short[1].seen >= short[0].seen {
		t.Errorf("the forward hook sees %d packets of short connections, with a flowtable %d", short[0].seen, short[1].seen)
	}
	if os.Getenv("GUEST_CLOCK") != "instructions" {
		return
	}
	// Short connections are no worse, but for what differs between two runs.
	for most, o := range map[float64][2]effort{0.85: roundTrip, 1.05: short} {
		if part := float64(o[1].median) / float64(o[0].median); part > most {
			t.Errorf("with a flowtable %v instead of %v: %.3f of the instructions, want at most %.2f", o[1].median, o[0].median, part, most)
		}
	}
}

// compare repeats an operation without a flowtable and with one, in turn, and returns the
// least medians, the average means and the most packets of each.
func (n *offloadNode) compare(o operation) (both [2]effort) {
	n.t.Helper()
	devices := n.unattended()
	const pairs = 5
	for pair := range pairs {
		for i := range both {
			if n.must(n.flows.Remove(n.t.Context())); i == 1 {
				n.must(n.flows.Set(n.t.Context(), devices))
			}
			c, b := n.repeat(o), &both[i]
			if pair == 0 || c.median < b.median {
				b.median = c.median
			}
			b.mean += c.mean / pairs
			b.seen = max(b.seen, c.seen)
		}
	}
	a, b := both[0], both[1]
	n.t.Logf("%s: median %v, with a flowtable %v (%+.1f %%); mean %v and %v; %d packets of %d times forwarded, with one %d", o.name,
		a.median, b.median, 100*float64(b.median-a.median)/float64(a.median), a.mean, b.mean, a.seen, offloadTimes, b.seen)
	if a.seen < o.packets*offloadTimes {
		n.t.Errorf("%s: the forward hook sees %d packets of %d times without a flowtable", o.name, a.seen, offloadTimes)
	}
	return both
}

// Connections go on, and new ones go where they should, as without offload: when other
// endpoints come and go, the proxy restarts, the flowtable goes and comes back, and the
// endpoint is removed.
func TestOffloadKeepsConnections(t *testing.T) {
	for _, past := range []bool{false, true} {
		t.Run(map[bool]string{false: "without", true: "with"}[past], func(t *testing.T) {
			n := newOffloadNode(t)
			both := n.operations()
			if past {
				n.offload()
			}
			n.long("at first", past, both...)
			n.serve(0, 1)
			n.long("another endpoint has come", past, both...)
			n.serve(0)
			n.long("it has gone", past, both...)
			n.must(n.plane.Close())
			n.long("no proxy runs", past, both...)
			n.open()
			n.sync()
			n.long("the proxy has restarted", past, both...)
			if past {
				n.comesAndGoes(both)
			}
			n.leaves(past, both[0])
		})
	}
}

// comesAndGoes removes the flowtable and makes it again.
func (n *offloadNode) comesAndGoes(both []operation) {
	n.t.Helper()
	devices := n.unattended()
	for range 3 {
		n.must(n.flows.Remove(n.t.Context()))
		n.long("without a flowtable", false, both...)
		n.must(n.flows.Set(n.t.Context(), devices))
		n.long("with one again", true, both...)
	}
}

// leaves removes the endpoint of the connection, which goes on, and of the flow, which
// moves to the other one as new connections do.
func (n *offloadNode) leaves(past bool, connection operation) {
	n.t.Helper()
	n.serve(1)
	n.long("the endpoint has gone", past, connection)
	n.ask(1)
	n.dial(unix.SOCK_STREAM, n.web.Frontends[0].At)
	server, err := n.webs[1].accept()
	n.must(errors.Join(err, server.close()))
}

// Beside another agent's flowtable there is none of ours, and the log has the reason. Once
// that is gone, the next attempt or change of devices has ours made.
func TestOffloadBesideAnother(t *testing.T) {
	n := newOffloadNode(t)
	said := &lines{}
	n.plane.log = slog.New(slog.NewTextHandler(said, nil))
	n.nft("table ip theirs { flowtable fast { hook ingress priority 0; devices = { pod0 }; }; }")
	both := n.operations()
	n.offloaded = true
	n.sync()
	said.wait(t, "flowtable ip theirs fast belongs to another agent")
	if ps := n.plane.Health().Problems; len(ps) != 1 || ps[0].Why != model.WhyDegraded || !strings.Contains(ps[0].Detail, "theirs") {
		t.Errorf("the problems are %v", ps)
	}
	n.long("beside another flowtable", false, both...)
	if tables := n.nft("list", "tables"); strings.Contains(tables, "tandem-offload") {
		t.Errorf("beside another flowtable there are %s", tables)
	}
	var found []diagnosis.Flowtable
	n.must(n.lab.Do(netns.Node, func() (err error) { found, err = nft.Flowtables(t.Context()); return err }))
	if len(found) != 1 || found[0].Own || !slices.Equal(found[0].Devices, []string{"pod0"}) {
		t.Errorf("doctor is told of the flowtables %v", found)
	}
	n.nft("delete", "table", "ip", "theirs")
	n.device("poke") // a change of devices is looked at at once
	n.offload()
	said.wait(t, "flow offload enabled")
	if ps := n.plane.Health().Problems; len(ps) != 0 {
		t.Errorf("in effect, and the problems are %v", ps)
	}
	n.long("the other flowtable has gone", true, both...)
}

// device adds a device to the node.
func (n *offloadNode) device(name string) {
	n.t.Helper()
	n.devices++
	n.must(n.lab.Do(netns.Node, func() error {
		links, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer links.Close()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}
		return links.LinkAdd(veth)
	}))
}

// Opening the mode without offload, as a query does, leaves a flowtable; the first Sync
// and a cleanup remove it.
func TestOffloadIsLeftByOpening(t *testing.T) {
	n := newOffloadNode(t)
	n.offload()
	n.must(n.plane.Close())
	has := func(when string, want bool) {
		t.Helper()
		if exists, _, err := n.flows.Devices(t.Context()); exists != want || err != nil {
			t.Errorf("%s: there is a flowtable: %t (%v)", when, exists, err)
		}
	}
	for what, use := range map[string]func(dataplane.Backend) error{
		"the first sync": func(b dataplane.Backend) error {
			b.SetHost(testHost)
			b.Update([]model.Delta{{New: n.web}, {New: n.dns}})
			_, err := b.Sync(t.Context())
			return err
		},
		"a cleanup": func(b dataplane.Backend) error { return b.Remove(t.Context()) },
	} {
		n.must(n.flows.Set(t.Context(), []string{"pod0"}))
		var b dataplane.Backend
		c := config.Default()
		n.must(n.lab.Do(netns.Node, func() (err error) {
			b, err = openBackend(t.Context(), &c, slog.New(slog.DiscardHandler))
			return err
		}))
		n.must(b.Adopt(t.Context()))
		has("opened and read", true)
		n.must(use(b))
		has(what, false)
		n.must(b.Close())
	}
	n.open()
}

// A device that comes later is in the flowtable, and its packets are offloaded.
func TestOffloadOfALaterDevice(t *testing.T) {
	n := newOffloadNode(t)
	both := n.operations()
	n.offload()
	n.device("later")
	n.offload() // waits for it
	if _, devices, err := n.flows.Devices(t.Context()); err != nil || !slices.Contains(devices, "later") {
		t.Errorf("the flowtable has the devices %v (%v)", devices, err)
	}
	n.long("a device has come", true, both...)
}

// The flowtable has the devices that it is given, and no others: since Linux 6.16 the names of
// those that are gone stay in it. One that the kernel does not list, as of too many names, is made
// anew, and connections go on.
func TestOffloadHasNoOtherDevices(t *testing.T) {
	n := newOffloadNode(t)
	both := n.operations()
	n.offload()
	all := n.unattended()
	set := func(want ...string) {
		t.Helper()
		n.must(n.flows.Set(t.Context(), want))
		_, have, err := n.flows.Devices(t.Context())
		if n.must(err); !slices.Equal(slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(want))) {
			t.Errorf("the flowtable has the devices %v, want %v", have, want)
		}
	}
	set("pod1")
	n.long("one device is left", false, both...)
	set(all...)
	n.long("all are in it again", true, both...)
	n.nft("flush chain inet tandem-offload forward; delete flowtable inet tandem-offload services")
	n.long("it is not listed", false, both...)
	set(all...)
	n.long("it was made anew", true, both...)
}

// lines is a log that another goroutine writes.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// wait waits until the log has a text.
func (l *lines) wait(t *testing.T, text string) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		said := strings.Contains(l.text.String(), text)
		l.mu.Unlock()
		if said {
			return
		}
	}
	t.Fatalf("the log does not say %q", text)
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
