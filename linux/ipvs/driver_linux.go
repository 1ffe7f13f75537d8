// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Driver applies objects to the kernel (dataplane.Driver). It touches only owned
// objects: virtual servers with our flag, our sets and chains, kube-ipvs0. One
// goroutine may use it at a time, and another one Observe, from any thread.
//
// For the ledger a deleted destination is gone; in the kernel it drains: see drains.
type Driver struct {
	options Options
	log     *slog.Logger
	marks   *fwmarks
	kernel  *sockets // for Commit
	reader  *sockets // for Observe
	servers *servers
	tables  *tables
	drains  *drains
	poll    host.Poll
}

var (
	_ dataplane.Driver[Key, Value]   = (*Driver)(nil)
	_ dataplane.Drainer              = (*Driver)(nil)
	_ dataplane.Pruner               = (*Driver)(nil)
	_ dataplane.Compiler[Key, Value] = (*Compiler)(nil)
)

// Open returns a driver for the network namespace of the calling thread. Foreign
// virtual servers with addresses in exclude are never touched. Close it after use;
// programmed objects stay.
func Open(o Options, exclude []netip.Prefix, c *xtables.Commands, log *slog.Logger) (*Driver, error) {
	d := &Driver{options: o, log: log, marks: newFWMarks(bitsFor(o.Mark))}
	var errs [4]error
	var other *sockets
	d.kernel, errs[0] = connect()
	d.reader, errs[1] = connect()
	other, errs[2] = connect()
	d.tables, errs[3] = openTables(c)
	if other != nil {
		d.drains = startDrains(other, d.marks, log)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.servers = &servers{d.kernel, d.marks, d.drains, exclude}
	return d, nil
}

// Close implements dataplane.Driver. Draining destinations stay unchanged; the next
// driver continues.
func (d *Driver) Close() error {
	if d.drains != nil {
		d.drains.stop()
	}
	for _, k := range []*sockets{d.kernel, d.reader} {
		if k != nil {
			k.close()
		}
	}
	if d.tables != nil {
		return d.tables.close()
	}
	return nil
}

// Prune implements dataplane.Pruner.
func (d *Driver) Prune(ctx context.Context) error {
	return d.tables.ns.Do(func() error { return d.tables.DeleteBare(ctx, d.options.families(), ownedTables[:]...) })
}

// sweep deletes what a killed probe has left.
func (d *Driver) sweep(ctx context.Context) error {
	return d.tables.ns.Do(func() error {
		lock, err := host.LockProbe(ctx)
		if err != nil {
			return err
		}
		defer lock.Close()
		return d.kernel.sweep(ctx, d.tables.Commands, d.options.families())
	})
}

// Limits implements dataplane.Driver.
func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{} }

// Commit implements dataplane.Driver: op by op, except that consecutive ops on
// entries, or on chains, are written together.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	errs := make([]error, len(ops))
	c := commit{d, ctx, d.servers.begin(ops)}
	for i := 0; i < len(ops); {
		n := 1
		for i+n < len(ops) && batchKind(ops[i].Key.Kind) != 0 && batchKind(ops[i+n].Key.Kind) == batchKind(ops[i].Key.Kind) {
			n++
		}
		c.apply(ops[i:i+n], errs[i:i+n])
		i += n
	}
	return errs
}

// commit is one Commit.
type commit struct {
	*Driver
	ctx     context.Context
	servers *serverCommit
}

func (c *commit) apply(ops []ledger.Op[Key, Value], errs []error) {
	if err := c.ctx.Err(); err != nil {
		fill(errs, err)
		return
	}
	switch batchKind(ops[0].Key.Kind) {
	case 1:
		c.entries(ops, errs)
	case 2:
		c.tables.apply(c.ctx, ops, errs)
	default:
		if err := c.one(ops[0]); err != nil {
			errs[0] = fmt.Errorf("ipvs: %w", err)
		}
	}
}

func fill(errs []error, err error) {
	for i := range errs {
		errs[i] = err
	}
}

func (c *commit) one(op ledger.Op[Key, Value]) error {
	switch op.Key.Kind {
	case kindLink:
		return c.kernel.link(op.Verb)
	case kindRule:
		return c.kernel.rule(op.Verb, op.Key.Family, cmp.Or(op.Key.Mark, c.marks.service))
	case kindRoute:
		return c.kernel.route(op.Verb, op.Key.Dst.Addr())
	case KindSet:
		return c.kernel.set(op.Verb, definition(op.Key))
	case kindAddress:
		if op.Verb == ledger.Replace {
			return c.kernel.restoreSource(op.Key.Dst.Addr(), op.Old.Source)
		}
		return c.kernel.address(op.Verb, op.Key.Dst.Addr())
	case kindServer:
		return c.servers.server(op)
	case kindDest:
		return c.servers.dest(op)
	}
	return fmt.Errorf("%s: unknown kind of object", op.Key)
}

// entries writes entries of sets in one batch.
func (c *commit) entries(ops []ledger.Op[Key, Value], errs []error) {
	changes := make([]ipset.Change, 0, len(ops))
	places := make([]int, 0, len(ops))
	for i, op := range ops {
		change := ipset.Change{
			Set: op.Key.Set.Name(op.Key.Family), Entry: entryOf(op.Key),
			Delete: op.Verb == ledger.Delete, Net: op.Key.Set.kind() == hashNet,
		}
		if op.Key.Set.marks() && !change.Delete {
			m, err := c.marks.entry(op.Key, op.New)
			if err != nil {
				errs[i] = err
				continue
			}
			change.Entry.Mark, change.Entry.MarkMask = m.Value, m.Mask
		}
		changes, places = append(changes, change), append(places, i)
	}
	for i, err := range c.kernel.sets.Apply(c.ctx, changes) {
		if changes[i].Delete && errors.Is(err, ipset.ErrNotFound) {
			err = nil // the set is gone, and the entry with it
		}
		errs[places[i]] = err
	}
}

var _ dataplane.Sentinel = (*Driver)(nil)

// Disturbed implements dataplane.Sentinel. The kernel sends no events for virtual
// servers and sets, so everything is read again every syncPeriod.
func (d *Driver) Disturbed(context.Context) (bool, error) { return d.poll.Due(time.Now()), nil }

// Observe implements dataplane.Driver. It reads everything; draining destinations are
// added to drains and not reported.
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

func (d *Driver) observe(ctx context.Context) (have map[Key]Value, err error) {
	d.poll.Begin(time.Now())
	defer func() { d.poll.End(time.Now()) }()
	err = host.RetryInterrupted(func() error {
		have, err = d.observeOnce(ctx)
		return err
	})
	return have, err
}

func (d *Driver) observeOnce(ctx context.Context) (map[Key]Value, error) {
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
// rules for our table are owned.
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

// routes reads the routes of our table, which are all owned.
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
	set, entries, err := o.reader.sets.List(k.Set.Name(k.Family))
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
			if n, via := o.marks.parse(e.Mark); n != 0 && e.MarkMask == ^uint32(0) {
				v.Via = via
				o.noteServer(key, e.Mark)
			}
		}
		o.emit(key, v)
	}
	return nil
}

// noteServer records an entry that selects a virtual server by fwmark, which is named
// by the lowest such frontend.
func (o *observation) noteServer(entry Key, mark uint32) {
	at := markKey{entry.Family, mark}
	if known, ok := o.byMark[at]; ok && known.Dst.Compare(entry.Dst) <= 0 {
		return
	}
	_, via := o.marks.parse(mark)
	o.byMark[at] = Key{Kind: kindServer, Family: entry.Family, Proto: entry.Proto, Via: via, Dst: entry.Dst}
}

// nameServers sets the names of virtual servers in the entries that select them.
func (o *observation) nameServers(f model.Family) {
	for k, v := range o.have {
		if k.Kind == kindEntry && k.Family == f && v.Via != ByAddress {
			v.ByMark = o.byMark[markKey{f, v.Mark.Value}].Dst
			v.Mark = o.marks.byMark(v.Via == ByMarkSNAT)
			o.have[k] = v
		}
	}
	for at, server := range o.byMark {
		if at.family == f {
			o.marks.observed(server, at.mark)
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

// servers reads our virtual servers with their destinations.
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
