// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/host"
)

// loAddress is the relay address as an address of lo, for this host alone.
func loAddress(f model.Family) (netlink.Link, *netlink.Addr, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, nil, fmt.Errorf("loopback interface: %w", err)
	}
	return lo, host.ServiceAddress(relayAddr(f)), nil
}

func addRelayAddr(ctx context.Context, f model.Family) error {
	lo, addr, err := loAddress(f)
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(lo, addr); err != nil {
		return fmt.Errorf("add %s to lo: %w", addr.IP, err)
	}
	return reachable(ctx, f)
}

// reachable waits for the route to a new address. For IPv6 the kernel adds it
// asynchronously.
func reachable(ctx context.Context, f model.Family) (err error) {
	const attempts, pause = 200, 10 * time.Millisecond
	for range attempts {
		var routes []netlink.Route
		routes, err = netlink.RouteGet(relayAddr(f).AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if !sleep.For(ctx, pause) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%s was added to lo but is not reachable: %w", relayAddr(f), cmp.Or(err, error(unix.ENETUNREACH)))
}

func removeRelayAddr(f model.Family) error {
	lo, addr, err := loAddress(f)
	if err != nil {
		return err
	}
	if err := netlink.AddrDel(lo, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove %s from lo: %w", addr.IP, err)
	}
	return nil
}

func hasRelayAddr(f model.Family) (bool, error) {
	lo, addr, err := loAddress(f)
	if err != nil {
		return false, err
	}
	family := [...]int{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6}[f]
	var all []netlink.Addr
	err = host.RetryInterrupted(func() error {
		all, err = netlink.AddrList(lo, family)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list the addresses of lo: %w", err)
	}
	for _, a := range all {
		if a.IP.Equal(addr.IP) {
			return true, nil
		}
	}
	return false, nil
}

// dropListeners are the sockets on the drop port. Their filter drops every packet, so
// that clients get no answer.
type dropListeners []io.Closer

func openDropPort(ctx context.Context, f model.Family) (s dropListeners, err error) {
	at := netip.AddrPortFrom(relayAddr(f), dropPort).String()
	config := net.ListenConfig{Control: dropAll}
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp", at)
	if err != nil {
		return nil, fmt.Errorf("drop port: %w", err)
	}
	s = append(s, l)
	u, err := config.ListenPacket(ctx, "udp", at)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("drop port: %w", err), s.close())
	}
	return append(s, u), nil
}

func (s dropListeners) close() error {
	var errs []error
	for _, c := range s {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// dropAll attaches a socket filter that drops every packet.
func dropAll(_, _ string, c syscall.RawConn) error {
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	var err error
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	})
	return errors.Join(control, err)
}

// relays are the listeners that are targets of entries. One goroutine may use them at
// a time.
type relays struct {
	server  *relay.Server
	pass    relay.Handover // or nil
	log     *slog.Logger
	open    map[RelayID]*listener
	ports   map[RelayID]uint16 // of an earlier run, from its rules
	changed bool               // some relay could not bind its port of the earlier run
}

// listener is a relay that listens.
type listener struct {
	*relay.Relay
	policy *relay.Policy
}

func newRelays(o relay.Options) relays {
	o.Ports = ephemeralPorts()
	return relays{server: relay.NewServer(o), pass: o.Handover, log: o.Log, open: map[RelayID]*listener{}, ports: map[RelayID]uint16{}}
}

// ephemeralPorts is how many ports the system chooses from for a socket without one, on any
// address of this network namespace; 0 if unknown.
func ephemeralPorts() int {
	var first, last int
	text, err := host.Sysctl("net/ipv4/ip_local_port_range") // for IPv6, too
	if err == nil {
		_, err = fmt.Sscan(text, &first, &last)
	}
	if err != nil {
		return 0
	}
	return last - first + 1
}

// listen opens a relay or changes its policy. After a restart it binds the port that
// the rules of the earlier run use, unless that is taken.
func (r *relays) listen(id RelayID, p *relay.Policy) error {
	if l := r.open[id]; l != nil && l.Listening() {
		l.Update(*p)
		l.policy = p
		return nil
	} else if l != nil {
		r.replace(id, l)
	}
	before := r.ports[id]
	l, err := r.server.Listen(id.Port().Proto, relayAddrPort(id.Port().Family, before), *p)
	if err != nil && before != 0 {
		l, err = r.server.Listen(id.Port().Proto, relayAddrPort(id.Port().Family, 0), *p)
	}
	if err != nil {
		return err
	}
	r.open[id] = &listener{l, p}
	delete(r.ports, id)
	r.changed = r.changed || before != 0 && l.Addr().Port() != before
	return nil
}

// replace closes a relay whose socket another program has closed (ss -K). Its connections
// continue, and the next relay gets its port.
func (r *relays) replace(id RelayID, l *listener) {
	delete(r.open, id)
	l.Forget()
	if err := l.Close(); err != nil {
		r.log.Warn("closing a listener failed", "listener", l.Addr(), "err", err)
	}
	r.ports[id] = l.Addr().Port()
}

// lateClients is how long a relay still accepts clients that a deleted rule
// redirected to it: long enough for a retransmitted SYN, which comes after a second.
const lateClients = 2 * time.Second

// close retires a relay that no rule uses any more.
func (r *relays) close(id RelayID) {
	if l := r.open[id]; l != nil {
		delete(r.open, id)
		l.Forget()
		l.Retire(lateClients)
	}
}

// leadsTo reports whether a port is a relay's. Before the relay listens that is its port in
// the earlier run, taken from the first rule that is read.
func (r *relays) leadsTo(id RelayID, port uint16) bool {
	if l := r.open[id]; l != nil {
		return l.Addr().Port() == port
	}
	if r.ports[id] == 0 {
		r.ports[id] = port
	}
	return r.ports[id] == port
}

// flowTable deletes stale flows from conntrack, on a goroutine of its own: walking a large table takes a third of a
// second, which no commit waits for, and namespaces share the time (flows.Cleaner). It opens conntrack for the first
// flows, in the network namespace of the caller, and keeps it open: closing it delays the next transaction of
// nf_tables (conntrack.Reader).
type flowTable struct {
	log     *slog.Logger
	open    func() (closingTable, error)
	leads   func(flows.Flow) bool // Driver.leads; it may wait for a commit
	cleaner *flows.Cleaner        // nil before the first

	walking sync.Mutex // one walk at a time; a commit never takes it
	opening sync.Mutex // guards table, which is open before any walk
	table   closingTable
}

type closingTable interface {
	flows.Table
	io.Closer
}

func openConntrack() (closingTable, error) { return conntrack.Open() }

// Delete implements flows.Table. It keeps flows that lead to a relay of their frontend.
func (t *flowTable) Delete(ctx context.Context, matches []flows.Match, stale func(flows.Flow) bool) (int, error) {
	t.walking.Lock()
	defer t.walking.Unlock()
	return t.table.Delete(ctx, matches, func(f flows.Flow) bool { return stale(f) && !t.leads(f) })
}

// opened opens conntrack if there is something to delete, and reports whether it is open.
func (t *flowTable) opened(stale []flows.Match) bool {
	t.opening.Lock()
	defer t.opening.Unlock()
	if len(stale) == 0 || t.table != nil {
		return len(stale) > 0
	}
	table, err := t.open()
	if err != nil {
		t.failed(err)
		return false
	}
	t.table = table
	return true
}

// failed logs a failure, which does not fail the commit: the flows end when their clients pause.
func (t *flowTable) failed(err error) {
	t.log.Warn("deleting stale UDP conntrack entries failed", "mode", relay.Mode, "err", err)
}

// enqueue has stale flows deleted soon.
func (t *flowTable) enqueue(ctx context.Context, stale []flows.Match) {
	if !t.opened(stale) {
		return
	}
	if t.cleaner == nil {
		t.cleaner = flows.Start(context.WithoutCancel(ctx), t, flows.Hooks{
			Cleaned: func(r flows.Report) {
				if r.Err != nil {
					t.failed(r.Err)
				}
			},
			// No Dropped: the proxy's own cleaner has the same frontends and queue, and reports it
		})
	}
	t.cleaner.Enqueue(onThisHost(stale))
}

// delete deletes stale flows now.
func (t *flowTable) delete(ctx context.Context, stale []flows.Match) {
	if !t.opened(stale) {
		return
	}
	var x flows.Index
	for _, m := range onThisHost(stale) {
		x.Add(m)
	}
	if _, err := t.Delete(ctx, x.Matches(), x.Stale); err != nil {
		t.failed(err)
	}
}

// lastFlows is how long close may take to delete the stale flows that are left.
const lastFlows = 5 * time.Second

func (t *flowTable) close() error {
	if t.cleaner != nil {
		ctx, cancel := context.WithTimeout(context.Background(), lastFlows)
		defer cancel()
		t.delete(ctx, t.cleaner.Close())
		t.cleaner = nil
	}
	t.opening.Lock()
	defer t.opening.Unlock()
	if t.table == nil {
		return nil
	}
	err := t.table.Close()
	t.table = nil
	return err
}

// onThisHost sets the addresses at which node ports answer.
func onThisHost(stale []flows.Match) []flows.Match {
	own := ownAddresses()
	for i := range stale {
		stale[i].Own = own
	}
	return stale
}

// ownAddresses are those of this host, or none if they cannot be listed.
func ownAddresses() (own []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own
}
