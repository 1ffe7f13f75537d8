// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// Observe reads everything once. Draining destinations are added to drains and not reported.
func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	have, err := d.observe(ctx)
	if errors.Is(err, unix.EINTR) {
		err = fmt.Errorf("%w: %w", dataplane.ErrInterrupted, err)
	}
	for k, v := range have {
		found(k, v)
	}
	return err
}

func (d *Driver) observe(ctx context.Context) (map[Key]Value, error) {
	d.poll.Begin(time.Now())
	defer func() { d.poll.End(time.Now()) }()
	o := observation{Driver: d, ctx: ctx, have: map[Key]Value{}, byMark: map[markKey]Key{}}
	for _, f := range d.options.families() {
		if err := o.family(f); err != nil {
			return nil, fmt.Errorf("ipvs: read back: %w", err)
		}
	}
	if err := errors.Join(o.link(), o.servers()); err != nil {
		return nil, fmt.Errorf("ipvs: read back: %w", err)
	}
	return o.have, nil
}

// observation is one Observe.
type observation struct {
	*Driver
	ctx    context.Context
	have   map[Key]Value
	byMark map[markKey]Key // virtual servers that entries lead to, by mark
}

type markKey struct {
	family model.Family
	mark   uint32
}

func (o *observation) emit(k Key, v Value) { o.have[k] = v }

func (o *observation) family(f model.Family) error {
	if err := errors.Join(o.rules(f), o.routes(f)); err != nil {
		return err
	}
	for s := noSet + 1; s < numSets; s++ {
		if err := errors.Join(o.ctx.Err(), o.set(Key{Kind: KindSet, Family: f, Set: s})); err != nil {
			return err
		}
	}
	o.nameServers(f)
	return o.tables.observe(o.ctx, f, o.emit)
}

// rules reads the routing rule, and leftover ones for another masquerade bit: all
// rules for routeTable are owned.
func (o *observation) rules(f model.Family) error {
	rules, err := o.reader.links.RuleList(netlinkFamily(f))
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Priority != routePriority || r.Table != routeTable || r.Mask == nil || *r.Mask != r.Mark || bits.OnesCount32(r.Mark) != 1 {
			continue
		}
		k := Key{Kind: kindRule, Family: f}
		if r.Mark != o.marks.service {
			k.Mark = r.Mark
		}
		o.emit(k, Value{})
	}
	return nil
}

// routes reads the routes of routeTable, which are all owned.
func (o *observation) routes(f model.Family) error {
	filter := netlink.Route{Table: routeTable, Type: unix.RTN_LOCAL}
	routes, err := o.reader.links.RouteListFiltered(netlinkFamily(f), &filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			o.emit(Key{Kind: kindRoute, Family: f, Dst: dstAddr(a.Unmap())}, Value{})
		}
	}
	return nil
}

// set reads a set. One with another definition is foreign.
func (o *observation) set(k Key) error {
	set, entries, err := o.reader.sets.List(o.ctx, k.Set.Name(k.Family))
	switch {
	case errors.Is(err, ipset.ErrNotFound):
		return nil
	case err != nil:
		return err
	case set != definition(k):
		return nil
	}
	o.emit(k, Value{})
	for _, e := range entries {
		key, v := keyOf(k, e), Value{}
		if k.Set.marks() {
			v.Mark = Mark{e.Mark, e.MarkMask}
			o.noteServer(key, v.Mark)
		}
		o.emit(key, v)
	}
	return nil
}

// noteServer records the virtual server by fwmark that an entry selects, named by the entry's
// frontend, or the lowest one: earlier versions had one server for all frontends of a port.
func (o *observation) noteServer(entry Key, mark Mark) {
	n, via := o.marks.parse(mark.Value)
	if n == 0 || mark.Mask != ^uint32(0) {
		return
	}
	at, server := markKey{entry.Family, mark.Value}, entry
	server.Kind, server.Set, server.Via, server.Dst = kindServer, noSet, via, o.frontend(entry)
	if known, ok := o.byMark[at]; !ok || server.Dst.Compare(known.Dst) < 0 {
		o.byMark[at] = server
	}
}

// frontend is the frontend of an exception: a node port unless a set of cluster, external or
// load balancer IPs has it. These sets are read before.
func (o *observation) frontend(exception Key) netip.AddrPort {
	for _, s := range []SetID{ClusterIPs, ExternalIPs, LoadBalancer} {
		k := exception
		k.Set = s
		if _, ok := o.have[k]; ok {
			return exception.Dst
		}
	}
	return netip.AddrPortFrom(exception.Family.Unspecified(), exception.Dst.Port())
}

// nameServers sets the names of virtual servers in the entries that select them. If several have
// one name, since the entries of a node port select different ones, the one with the lowest
// mark gets it. The others are orphans, and entries that select them are drift.
func (o *observation) nameServers(f model.Family) {
	first := map[Key]uint32{}
	for at, server := range o.byMark {
		if mark, ok := first[server]; at.family == f && (!ok || at.mark < mark) {
			first[server] = at.mark
		}
	}
	for at, server := range o.byMark {
		switch {
		case at.family != f:
		case first[server] == at.mark:
			o.marks.observed(server, at.mark)
		default:
			delete(o.byMark, at)
		}
	}
	for k, v := range o.have {
		if k.Kind != kindEntry || k.Family != f || v.Mark.Mask != ^uint32(0) {
			continue
		}
		if server, ok := o.byMark[markKey{f, v.Mark.Value}]; ok {
			o.have[k] = Value{Mark: o.marks.byMark(server.Via == ByMarkSNAT), ByMark: server.Dst, Via: server.Via}
		}
	}
}

// link reads the device, if it is owned, and its addresses.
func (o *observation) link() error {
	link, err := o.reader.links.LinkByName(Link)
	if err != nil {
		return ignore(err, unix.ENODEV)
	}
	if link.Attrs().Alias != alias {
		return nil
	}
	o.emit(Key{Kind: kindLink}, Value{})
	for _, f := range o.options.families() {
		addrs, err := o.reader.links.AddrList(link, netlinkFamily(f))
		if err != nil {
			return err
		}
		for _, a := range addrs {
			addr, ok := netip.AddrFromSlice(a.IP)
			if addr = addr.Unmap(); ok && model.FamilyOf(addr) == f && !addr.IsLinkLocalUnicast() {
				o.emit(Key{Kind: kindAddress, Family: f, Dst: dstAddr(addr)}, Value{})
			}
		}
	}
	return o.reader.eachLocalRoute(func(to netip.Addr, r netlink.Route) error {
		k := Key{Kind: kindAddress, Family: model.FamilyOf(to), Dst: dstAddr(to)}
		if _, ok := o.have[k]; ok {
			o.emit(k, Value{Source: preferredSource(to, r)})
		}
		return nil
	})
}

// servers reads the owned virtual servers with their destinations.
func (o *observation) servers() error {
	var orphans []Key
	err := o.reader.servers.List(func(id virtualserver.ID, s virtualserver.Server) error {
		if s.Flags&flagOwned == 0 {
			return nil
		}
		if err := o.ctx.Err(); err != nil {
			return err
		}
		k := o.serverKey(id)
		if k.Via == Orphan {
			orphans = append(orphans, k)
		}
		s.Flags &^= flagOwned
		o.marks.belongs(k, Value{Server: s}.tenant())
		all, err := o.reader.servers.Destinations(id)
		if errors.Is(err, virtualserver.ErrNoServer) { // deleted since, as a probe's
			return nil
		}
		var weights []int
		for _, d := range all {
			o.dest(k.dest(d.Addr), d.Weight)
			if d.Weight > 0 {
				weights = append(weights, d.Weight)
			}
		}
		differ := len(weights) > 0 && slices.Min(weights) != slices.Max(weights)
		o.emit(k, Value{Server: s, Weighted: differ && isWeighted(s.Scheduler)})
		return err
	})
	if err == nil {
		o.marks.orphans(orphans)
	}
	return err
}

// dest records a destination. One of weight 0 is draining.
func (o *observation) dest(k Key, weight int) {
	if weight == 0 {
		o.drains.add(k)
		return
	}
	o.emit(k, Value{Weight: uint16(min(weight, math.MaxUint16))})
}

// serverKey returns the key of an owned virtual server.
func (o *observation) serverKey(id virtualserver.ID) Key {
	if id.FWMark == 0 {
		return Key{Kind: kindServer, Family: id.Family, Proto: id.Proto, Dst: id.Addr}
	}
	if k, ok := o.byMark[markKey{id.Family, id.FWMark}]; ok {
		return k
	}
	return orphan(id.Family, id.FWMark)
}

func (t *tuned) Connections(ctx context.Context, endpoints bool, found func(dataplane.Connections)) (counted bool, err error) {
	if endpoints {
		return true, t.driver.endpoints(ctx, found)
	}
	return true, t.driver.connections(found)
}

// endpoints passes the counters of destinations: a request for each virtual server that has
// had connections.
func (d *Driver) endpoints(ctx context.Context, found func(dataplane.Connections)) error {
	return d.eachCounted(func(c *virtualserver.Conn, s countedServer) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := c.CountsOf(s.id, func(at netip.AddrPort, n uint64) { s.count(dataplane.Connections{Endpoint: at, New: n}, found) })
		if errors.Is(err, virtualserver.ErrNoServer) {
			return nil // it was deleted meanwhile
		}
		return err
	})
}

// connections passes the kernel's own counters of virtual servers: changes of destinations
// leave them as they are.
func (d *Driver) connections(found func(dataplane.Connections)) error {
	return d.eachCounted(func(_ *virtualserver.Conn, s countedServer) error {
		s.count(dataplane.Connections{New: s.n}, found)
		return nil
	})
}

// countedServer is a virtual server that has had n connections.
type countedServer struct {
	id   virtualserver.ID
	key  Key
	n    uint64
	node bool // at an address of this node
}

// eachCounted calls f for the owned virtual servers that have had connections, in the network namespace of the
// calling thread.
func (d *Driver) eachCounted(f func(*virtualserver.Conn, countedServer) error) error {
	own, err := nodeAddresses()
	if err != nil {
		return err
	}
	c, err := virtualserver.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	var all []countedServer
	err = c.Counts(func(id virtualserver.ID, s virtualserver.Server, n uint64) {
		if k, known := d.marks.server(id); known && s.Flags&flagOwned != 0 && n > 0 {
			all = append(all, countedServer{id, k, n, slices.Contains(own, k.Dst.Addr())})
		}
	})
	for _, s := range all {
		if err != nil {
			break
		}
		err = f(c, s)
	}
	if err != nil {
		return fmt.Errorf("counters of IPVS: %w", err)
	}
	return nil
}

// count passes a count with its frontend. At an address of this node that is a node port, or
// a Service's frontend with this address: both are passed.
func (s countedServer) count(n dataplane.Connections, found func(dataplane.Connections)) {
	n.Proto, n.At = s.key.Proto, s.key.Dst
	found(n)
	if s.node {
		n.At = netip.AddrPortFrom(model.FamilyOf(n.At.Addr()).Unspecified(), n.At.Port())
		found(n)
	}
}
