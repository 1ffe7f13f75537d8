// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// sockets are the netlink sockets of one goroutine.
type sockets struct {
	servers *virtualserver.Conn
	links   *netlink.Handle
	sets    *ipset.Conn
}

func connect() (*sockets, error) {
	k := &sockets{}
	var errs [3]error
	k.servers, errs[0] = virtualserver.Open()
	k.links, errs[1] = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_INET_DIAG)
	k.sets, errs[2] = ipset.Open()
	if err := errors.Join(errs[:]...); err != nil {
		k.close()
		return nil, fmt.Errorf("ipvs: open netlink sockets: %w", err)
	}
	return k, nil
}

func (k *sockets) close() {
	if k.servers != nil {
		k.servers.Close()
	}
	if k.links != nil {
		k.links.Close()
	}
	if k.sets != nil {
		_ = k.sets.Close() // nothing is buffered in it
	}
}

// ignore returns nil for the harmless errors, else err.
func ignore(err error, harmless ...error) error {
	var gone netlink.LinkNotFoundError
	for _, f := range harmless {
		if errors.Is(err, f) || f == unix.ENODEV && errors.As(err, &gone) {
			return nil
		}
	}
	return err
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// alias is the device's interface alias, which marks it as owned: without it the device is kube-proxy's.
const alias = "kept by Tandem"

// link creates the device, adopts kube-proxy's, or deletes it. It stays down, as in
// kube-proxy: nothing is sent through it.
func (k *sockets) link(verb ledger.Verb) error {
	if verb == ledger.Delete {
		link, err := k.links.LinkByName(Link)
		if err == nil {
			err = k.links.LinkDel(link)
		}
		return ignore(wrap("link "+Link, err), unix.ENODEV)
	}
	err := k.links.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: Link}})
	if ignore(err, unix.EEXIST) != nil {
		return wrap("link "+Link, err)
	}
	link, err := k.links.LinkByName(Link)
	if err == nil {
		err = k.links.LinkSetAlias(link, alias)
	}
	return wrap("link "+Link, err)
}

// address binds a cluster IP to the device, or unbinds it.
func (k *sockets) address(verb ledger.Verb, a netip.Addr) error {
	link, err := k.links.LinkByName(Link)
	if err != nil {
		if verb == ledger.Delete {
			return ignore(err, unix.ENODEV)
		}
		return wrap("address "+a.String(), err)
	}
	addr := host.ServiceAddress(a)
	if verb == ledger.Delete {
		return ignore(wrap("address "+a.String(), k.links.AddrDel(link, addr)), unix.EADDRNOTAVAIL)
	}
	return ignore(wrap("address "+a.String(), k.links.AddrAdd(link, addr)), unix.EEXIST)
}

// rule creates or deletes the routing rule that selects routeTable for packets with a mark.
func (k *sockets) rule(verb ledger.Verb, f model.Family, mark uint32) error {
	rule := routeRule(f, mark)
	if verb == ledger.Delete {
		return ignore(wrap("routing rule", k.links.RuleDel(rule)), unix.ENOENT)
	}
	return ignore(wrap("routing rule", k.links.RuleAdd(rule)), unix.EEXIST)
}

// route creates or deletes a route that delivers packets to an address locally.
func (k *sockets) route(verb ledger.Verb, a netip.Addr) error {
	const loopback = 1 // the index of lo in every network namespace
	local := &netlink.Route{
		Family: netlinkFamily(model.FamilyOf(a)), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: host.SingleAddr(a), LinkIndex: loopback, Table: routeTable,
	}
	if verb == ledger.Delete {
		return ignore(wrap("local route to "+a.String(), k.links.RouteDel(local)), unix.ESRCH, unix.ENOENT)
	}
	return ignore(wrap("local route to "+a.String(), k.links.RouteAdd(local)), unix.EEXIST)
}

func routeRule(f model.Family, mark uint32) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = netlinkFamily(f), routePriority, routeTable
	rule.Mark, rule.Mask = mark, &mark
	return rule
}

func netlinkFamily(f model.Family) int {
	return [...]int{netlink.FAMILY_V4, netlink.FAMILY_V6}[f]
}

// set creates a set. An existing set of the name has another type, since Observe did
// not report it: it is swapped for the new one, so that rules always refer to a set.
func (k *sockets) set(ctx context.Context, verb ledger.Verb, s ipset.Set) error {
	if verb == ledger.Delete {
		return ignore(k.sets.Destroy(ctx, s.Name), ipset.ErrNotFound)
	}
	err := k.sets.Create(ctx, s)
	if !errors.Is(err, ipset.ErrExists) {
		return err
	}
	fresh := s
	fresh.Name = "TANDEM-NEW"
	// An interrupted swap may have left a set.
	if err := ignore(k.sets.Destroy(ctx, fresh.Name), ipset.ErrNotFound); err != nil {
		return err
	}
	if err := k.sets.Create(ctx, fresh); err != nil {
		return err
	}
	return errors.Join(k.sets.Swap(ctx, fresh.Name, s.Name), k.sets.Destroy(ctx, fresh.Name))
}

// The host's own packets to a cluster IP on kube-ipvs0 have that same address as
// their source, unless the local route has another preferred source. It must have one as soon
// as another mode serves the host: a connection from the cluster IP would break when the
// address is removed.

// preferNodeSource makes the host use one of its own addresses as the source of new
// connections to addresses on the device. Existing connections keep theirs.
func (k *sockets) preferNodeSource(own []netip.Addr) error {
	return k.eachLocalRoute(func(to netip.Addr, r netlink.Route) error {
		for _, a := range own {
			if a.Is4() == to.Is4() {
				return k.replaceSource(r, a)
			}
		}
		return nil
	})
}

// replaceSource changes the preferred source of a local route. In IPv6 the kernel's
// routes have a metric that user space cannot set, so the new route is added before
// the old one is deleted.
func (k *sockets) replaceSource(r netlink.Route, src netip.Addr) error {
	fresh := r
	fresh.Src, fresh.Priority = src.AsSlice(), 0
	if src.Is4() {
		return k.links.RouteReplace(&fresh)
	}
	if err := ignore(k.links.RouteAdd(&fresh), unix.EEXIST); err != nil {
		return err
	}
	return ignore(k.links.RouteDel(&r), unix.ESRCH)
}

// restoreSource re-creates an address whose route was changed by an aborted Drain.
func (k *sockets) restoreSource(a, src netip.Addr) error {
	link, err := k.links.LinkByName(Link)
	if err != nil {
		return wrap("address "+a.String(), err)
	}
	diverted := &netlink.Route{
		Family: netlinkFamily(model.FamilyOf(a)), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		Dst: host.SingleAddr(a), Src: src.AsSlice(), LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_LOCAL,
	}
	gone := ignore(wrap("local route to "+a.String(), k.links.RouteDel(diverted)), unix.ESRCH)
	return errors.Join(gone, k.address(ledger.Delete, a), k.address(ledger.Create, a))
}

// preferredSource returns the preferred source of the local route to an address, if
// it is another address.
func preferredSource(to netip.Addr, r netlink.Route) netip.Addr {
	src, ok := netip.AddrFromSlice(r.Src)
	if src = src.Unmap(); !ok || src == to {
		return netip.Addr{}
	}
	return src
}

// eachLocalRoute calls f for the local route to each address on kube-ipvs0, if the
// device is owned.
func (k *sockets) eachLocalRoute(f func(netip.Addr, netlink.Route) error) error {
	link, err := k.links.LinkByName(Link)
	if err != nil || link.Attrs().Alias != alias {
		return ignore(err, unix.ENODEV)
	}
	for _, family := range model.Families() {
		filter := netlink.Route{Table: unix.RT_TABLE_LOCAL, LinkIndex: link.Attrs().Index, Type: unix.RTN_LOCAL}
		const by = netlink.RT_FILTER_TABLE | netlink.RT_FILTER_OIF | netlink.RT_FILTER_TYPE
		var routes []netlink.Route
		err = host.RetryInterrupted(func() error {
			routes, err = k.links.RouteListFiltered(netlinkFamily(family), &filter, by)
			return err
		})
		if err != nil {
			return fmt.Errorf("local routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			to, _ := netip.AddrFromSlice(r.Dst.IP)
			if to = to.Unmap(); to.IsLinkLocalUnicast() || to.IsMulticast() {
				continue
			}
			if err := f(to, r); err != nil {
				return fmt.Errorf("local route to %s: %w", to, err)
			}
		}
	}
	return nil
}

// ownConnections counts the host's own connections from an address on the device,
// which break when it is removed.
func (k *sockets) ownConnections() (n int, err error) {
	addresses := map[netip.Addr]bool{}
	err = k.eachLocalRoute(func(a netip.Addr, _ netlink.Route) error {
		addresses[a] = true
		return nil
	})
	if err != nil || len(addresses) == 0 {
		return 0, err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := k.links.SocketDiagTCP(family)
		if errors.Is(err, unix.ENOENT) {
			return 0, nil // a kernel without tcp_diag cannot list them
		}
		if err != nil {
			return 0, fmt.Errorf("list connections: %w", err)
		}
		for _, s := range sockets {
			a, _ := netip.AddrFromSlice(s.ID.Source)
			if addresses[a.Unmap()] && s.State != netlink.TCP_TIME_WAIT { // it has ended
				n++
			}
		}
	}
	return n, nil
}

// openAddresses opens the addresses of this machine, except those on kube-ipvs0.
func openAddresses() (*host.Addresses, error) {
	return host.OpenAddresses(func(l netlink.Link) bool { return l.Attrs().Name == Link })
}

// sortedAddresses returns addresses in ascending order.
func sortedAddresses(a *host.Addresses) (ips []netip.Addr, err error) {
	all, err := a.List()
	for _, l := range all {
		ips = append(ips, l.Prefix.Addr())
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return ips, err
}

// nodeAddresses lists the addresses of this machine, in the network namespace of the
// calling thread.
func nodeAddresses() ([]netip.Addr, error) {
	a, err := openAddresses()
	if err != nil {
		return nil, err
	}
	own, err := sortedAddresses(a)
	return own, errors.Join(err, a.Close())
}

// tables are the tables of iptables. A family without commands has none.
type tables struct{ *xtables.Driver }

func openTables(c *xtables.Commands) (*tables, error) {
	ns, err := host.OpenNamespace()
	if err != nil {
		return nil, err
	}
	return &tables{xtables.OpenIn(ns, c.Tools, c.Families, ownedTables[:]...)}, nil
}

// apply writes ops on chains and jumps: each table of each family as a whole or not
// at all. A failure in one family does not affect the other; which tables of the
// family were written is then unknown.
func (t *tables) apply(ctx context.Context, ops []ledger.Op[Key, Value], errs []error) {
	for _, f := range model.Families() {
		text := restoreText(f, ops)
		if text == nil {
			continue
		}
		err := t.Write(ctx, f, text)
		if err != nil {
			err = fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
		}
		for i, op := range ops {
			if op.Key.Family == f {
				errs[i] = err
			}
		}
	}
}

// observe reads the owned chains of a family.
func (t *tables) observe(ctx context.Context, f model.Family, emit func(Key, Value)) error {
	if !slices.Contains(t.Families, f) {
		return nil
	}
	return t.Namespace.Do(func() error {
		text, err := t.Tools.SaveAll(ctx, f)
		if err != nil {
			return fmt.Errorf("%s tables: %w", f, err)
		}
		return readTables(f, text, emit)
	})
}

// servers creates, changes and deletes virtual servers and their destinations. One
// goroutine may use it at a time.
type servers struct {
	kernel  *sockets
	marks   *fwmarks
	drains  *drains
	exclude []netip.Prefix // foreign virtual servers with these addresses are never touched

	// drainable is unset for the scheduler dh: it has no flag to choose another destination
	// when the chosen one has weight 0, and rejects the connection (ip_vs_dh_schedule, Linux
	// net/netfilter/ipvs/ip_vs_dh.c).
	drainable bool
}

// serverCommit are the ops of one Commit on virtual servers and destinations.
type serverCommit struct {
	*servers
	ops []ledger.Op[Key, Value]

	deleted map[Key]bool // servers that are deleted, with their destinations
	failed  map[Key]bool // servers that could not be created or changed
	short   map[Key]bool // servers that lack a destination, which could not be created

	wanted map[Key]map[Peer]bool // destinations to create, by server; filled by wants
}

func (s *servers) begin(ops []ledger.Op[Key, Value]) *serverCommit {
	c := &serverCommit{servers: s, ops: ops, deleted: map[Key]bool{}, failed: map[Key]bool{}, short: map[Key]bool{}}
	for _, op := range ops {
		if op.Verb == ledger.Delete && op.Key.Kind == kindServer {
			c.deleted[op.Key] = true
		}
	}
	return c
}

// end corrects the results of destinations that are deleted with their servers: if the deletion of a server failed, so did
// theirs.
func (c *serverCommit) end(errs []error) {
	failed := map[Key]error{}
	for i, op := range c.ops {
		if op.Key.Kind == kindServer && op.Verb == ledger.Delete && errs[i] != nil {
			failed[op.Key] = errs[i]
		}
	}
	for i, op := range c.ops {
		if op.Key.Kind == kindDest && op.Verb == ledger.Delete {
			errs[i] = cmp.Or(errs[i], failed[op.Key.serverOf()])
		}
	}
}

// server creates, changes or deletes a virtual server.
func (c *serverCommit) server(op ledger.Op[Key, Value]) error {
	err := c.apply(op)
	if err != nil {
		c.failed[op.Key] = true
	}
	return err
}

func (c *serverCommit) apply(op ledger.Op[Key, Value]) error {
	if op.Verb != ledger.Delete {
		if err := c.marks.assign(op.Key, op.New.tenant()); err != nil {
			return wrap(op.Key.String(), err)
		}
	}
	id, known := c.marks.id(op.Key)
	if !known {
		return nil // it was never created
	}
	s := op.New.Server
	s.Flags |= flagOwned
	var err error
	switch op.Verb {
	case ledger.Delete:
		c.drains.forget(op.Key)
		err = c.kernel.servers.Delete(id)
		if err == nil && op.Key.Via != ByAddress {
			c.marks.release(op.Key)
		}
	case ledger.Replace:
		err = deletedExternally(c.kernel.servers.Update(id, s))
	default:
		if err = c.kernel.servers.Create(id, s); errors.Is(err, virtualserver.ErrExists) {
			err = c.adopt(op.Key, id, s, op.New.Weighted)
		}
	}
	return wrap(op.Key.String(), err)
}

// adopt takes ownership of an existing virtual server: kube-proxy's, or one whose
// creation was interrupted. Its scheduler is kept where it is equivalent to the wanted one (see
// Compiler.Equal). Destinations that are not wanted drain.
func (c *serverCommit) adopt(k Key, id virtualserver.ID, s virtualserver.Server, weights bool) error {
	if err := c.checkExcluded(k, id); err != nil {
		return err
	}
	had, exists, err := c.kernel.servers.Get(id)
	if err != nil {
		return err
	}
	if exists && !weights && weighted[had.Scheduler] == s.Scheduler {
		s.Scheduler = had.Scheduler
	}
	if err := c.kernel.servers.Update(id, s); err != nil {
		return err
	}
	have, err := c.kernel.servers.Destinations(id)
	if err != nil {
		return err
	}
	for _, d := range have {
		if to := k.dest(d.Addr); !c.wants(k, to.Peer) {
			if err := c.removeDest(to, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkExcluded returns an error for a foreign virtual server in an excluded range, which is
// not changed, nor its destinations.
func (c *servers) checkExcluded(k Key, id virtualserver.ID) error {
	if k.Via != ByAddress || !model.Contains(c.exclude, k.Dst.Addr()) {
		return nil
	}
	have, exists, err := c.kernel.servers.Get(id)
	if exists && have.Flags&flagOwned == 0 {
		return fmt.Errorf("virtual server %s is not owned by Tandem and its address is in ipvs.excludeCIDRs: %w", k.server(), virtualserver.ErrExists)
	}
	return err
}

// wants reports whether this commit creates a destination.
func (c *serverCommit) wants(server Key, to Peer) bool {
	if c.wanted == nil {
		c.wanted = map[Key]map[Peer]bool{}
		for _, op := range c.ops {
			if op.Key.Kind != kindDest || op.Verb == ledger.Delete {
				continue
			}
			s := op.Key.serverOf()
			if c.wanted[s] == nil {
				c.wanted[s] = map[Peer]bool{}
			}
			c.wanted[s][op.Key.Peer] = true
		}
	}
	return c.wanted[server][to]
}

// dest creates a destination or drains it. An existing one, draining or not, is
// reused. The last one stays while others cannot be created: see Last.
func (c *serverCommit) dest(op ledger.Op[Key, Value]) (err error) {
	server := op.Key.serverOf()
	if c.deleted[server] {
		return nil
	}
	id, known := c.marks.id(server)
	if !known {
		return wrap(op.Key.String(), errNoNumber)
	}
	if err := c.checkExcluded(server, id); err != nil {
		return wrap(op.Key.String(), err)
	}
	if op.Verb == ledger.Delete {
		if c.short[server] {
			if err := c.spare(op.Key, id); err != nil {
				return wrap(op.Key.String(), err)
			}
		}
		return wrap(op.Key.String(), c.removeDest(op.Key, id))
	}
	defer func() { c.short[server] = c.short[server] || err != nil }()
	to := op.Key.Peer.endpoint()
	if c.drains.cancel(op.Key) {
		if err = c.kernel.servers.SetWeight(id, to, int(op.New.Weight)); !errors.Is(err, virtualserver.ErrNoDestination) {
			return wrap(op.Key.String(), err)
		}
	}
	if err = c.kernel.servers.AddDestination(id, to, int(op.New.Weight)); errors.Is(err, virtualserver.ErrExists) {
		err = c.kernel.servers.SetWeight(id, to, int(op.New.Weight))
	}
	if !c.failed[server] {
		err = deletedExternally(err)
	}
	return wrap(op.Key.String(), err)
}

// errLast is why spare keeps a destination.
var errLast = errors.New("kept: last destination of its virtual server, and creating another one failed")

// spare returns an error if a destination is the last one that takes new connections.
func (c *servers) spare(k Key, id virtualserver.ID) error {
	have, err := c.kernel.servers.Destinations(id)
	if err != nil {
		return err
	}
	others := slices.ContainsFunc(have, func(d virtualserver.Destination) bool { return d.Weight > 0 && d.Addr != k.Peer.endpoint() })
	if !others {
		return errLast
	}
	return nil
}

// deletedExternally adds ledger.ErrUnknown to "no such virtual server": more may have changed,
// so everything must be read back.
func deletedExternally(err error) error {
	if errors.Is(err, virtualserver.ErrNoServer) {
		return fmt.Errorf("the virtual server was deleted externally: %w: %w", err, ledger.ErrUnknown)
	}
	return err
}

// removeDest drains a TCP destination, so that its connections can end, and deletes any other
// at once.
func (c *serverCommit) removeDest(k Key, id virtualserver.ID) error {
	if k.Proto != model.TCP || !c.drainable {
		return c.kernel.servers.DeleteDestination(id, k.Peer.endpoint())
	}
	err := c.kernel.servers.SetWeight(id, k.Peer.endpoint(), 0)
	if err == nil {
		c.drains.add(k)
	}
	return ignore(err, virtualserver.ErrNoDestination, virtualserver.ErrNoServer)
}
