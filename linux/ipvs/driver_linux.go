// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Driver applies objects to the kernel (dataplane.Driver). It changes only owned
// objects: virtual servers with flagOwned, Tandem's sets and chains, kube-ipvs0. One
// goroutine may use it at a time, and another one Observe, from any thread.
//
// To the ledger a draining destination is deleted: see drains.
type Driver struct {
	dataplane.SimpleDriver[Key, Value]
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
	d.servers = &servers{d.kernel, d.marks, d.drains, exclude, o.scheduler() != "dh"}
	return d, nil
}

// Close leaves draining destinations unchanged; the next driver continues.
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
		return d.tables.Close()
	}
	return nil
}

func (d *Driver) Prune(ctx context.Context) error { return d.tables.Prune(ctx) }

func (d *Driver) Others(ctx context.Context) ([]string, error) {
	return d.tables.Others(ctx, func(chain string) bool { return strings.HasPrefix(chain, "KUBE-") })
}

// sweep deletes scratch objects of a killed probe.
func (d *Driver) sweep(ctx context.Context) error {
	return d.tables.Namespace.Do(func() error {
		lock, err := host.LockProbe(ctx)
		if err != nil {
			return err
		}
		defer lock.Close()
		return d.kernel.sweep(ctx, d.tables.Tools, d.tables.Families, d.options.families())
	})
}

func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{} }

// Commit applies one op after the other, except that consecutive ops of a batch are
// written together.
func (d *Driver) Commit(ctx context.Context, ops []ledger.Op[Key, Value]) []error {
	errs := make([]error, len(ops))
	c := commit{d, ctx, d.servers.begin(ops)}
	for i := 0; i < len(ops); {
		n, b := 1, batchOf(ops[i].Key.Kind)
		for b != batchNone && i+n < len(ops) && batchOf(ops[i+n].Key.Kind) == b {
			n++
		}
		c.apply(ops[i:i+n], errs[i:i+n])
		i += n
	}
	c.servers.end(errs)
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
		for i := range errs {
			errs[i] = err
		}
		return
	}
	switch batchOf(ops[0].Key.Kind) {
	case batchEntries:
		c.entries(ops, errs)
	case batchRules:
		c.tables.apply(c.ctx, ops, errs)
	default:
		if err := c.one(ops[0]); err != nil {
			errs[0] = fmt.Errorf("ipvs: %w", err)
		}
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
		return c.kernel.set(c.ctx, op.Verb, definition(op.Key))
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
			Delete: op.Verb == ledger.Delete, Net: op.Key.Set.kind() == ipset.HashNet,
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
			err = nil // the set no longer exists
		}
		errs[places[i]] = err
	}
}

// Disturbed: the kernel sends no events for virtual servers and sets, so everything is read
// again every syncPeriod.
func (d *Driver) Disturbed(context.Context) (bool, error) { return d.poll.Due(time.Now()), nil }

// Drain leaves new connections to the next mode, and deletes virtual servers without
// connections until none is left, for drainLimit at most. All other objects stay: packets of
// existing connections are still marked, delivered locally and forwarded.
func (d *Driver) Drain(ctx context.Context) error {
	var own []netip.Addr
	err := d.tables.Namespace.Do(func() (err error) { own, err = nodeAddresses(); return err })
	if err := errors.Join(err, d.kernel.preferNodeSource(own), d.skipNewConnections(ctx)); err != nil {
		return fmt.Errorf("ipvs: start draining: %w", err)
	}
	late := time.NewTimer(drainLimit)
	defer late.Stop()
	tick := time.NewTicker(drainCheck)
	defer tick.Stop()
	for failing := false; ; {
		busy, err := d.deleteIdle(ctx)
		held, err2 := d.kernel.ownConnections()
		busy += held
		err = errors.Join(err, err2)
		if err == nil && busy == 0 {
			return nil
		}
		if err != nil && !failing && ctx.Err() == nil {
			d.log.Warn("draining virtual servers failed", "mode", Name, "err", err, "retry", drainCheck)
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-late.C:
			d.log.Warn("drain timeout; closing connections", "mode", Name, "busy", busy, "after", drainLimit)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// skipNewConnections restricts the jumps to the classifying chains to existing
// connections. The compiler emits no such jump, so a driver that adopts the objects
// later replaces it by the common one, after everything else.
func (d *Driver) skipNewConnections(ctx context.Context) error {
	var ops []ledger.Op[Key, Value]
	for _, f := range d.options.families() {
		err := d.tables.observe(ctx, f, func(k Key, v Value) {
			if k.Kind == kindJump && k.Chain.classifies() && !v.OldOnly {
				ops = append(ops, ledger.Op[Key, Value]{Verb: ledger.Replace, Key: k, Old: v, New: Value{OldOnly: true}})
			}
		})
		if err != nil {
			return err
		}
	}
	errs := make([]error, len(ops))
	d.tables.apply(ctx, ops, errs)
	return errors.Join(errs...)
}

// deleteIdle deletes owned virtual servers without TCP connections and sets the
// weights of all others to 0. It returns how many servers there were, also deleted ones: the
// next packet of a UDP flow must still reach IPVS, which then deletes the flow
// (expire_nodest_conn).
func (d *Driver) deleteIdle(ctx context.Context) (busy int, err error) {
	err = d.kernel.servers.List(func(id virtualserver.ID, s virtualserver.Server) error {
		if s.Flags&flagOwned == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		busy++
		if uses, err := d.drainServer(id); uses || err != nil {
			return err
		}
		return d.kernel.servers.Delete(id)
	})
	return busy, err
}

// drainServer reports whether a virtual server has TCP connections; if so it sets the
// weights of its destinations to 0.
func (d *Driver) drainServer(id virtualserver.ID) (bool, error) {
	if id.FWMark == 0 && id.Proto != model.TCP {
		return false, nil
	}
	have, err := d.kernel.servers.Destinations(id)
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(have, func(e virtualserver.Destination) bool { return e.Connections > 0 }) {
		return false, nil
	}
	for _, e := range have {
		if e.Weight == 0 {
			continue
		}
		err := d.kernel.servers.SetWeight(id, e.Addr, 0)
		if err := ignore(err, virtualserver.ErrNoDestination, virtualserver.ErrNoServer); err != nil {
			return true, err
		}
	}
	return true, nil
}

// Draining destinations are checked every drainCheck, or less often if a check takes more than 1/drainShare of the time,
// but at least once a minute. They are deleted after drainLimit, when IPVS by default expires an idle TCP connection.
const (
	drainCheck = 2 * time.Second
	drainShare = 100
	drainLimit = 15 * time.Minute
)

// drains are destinations that get no new connections (weight 0) and are deleted when
// they have none left. The kernel's weights are the only record: after a restart they
// are found there, and drainLimit starts again.
type drains struct {
	log    *slog.Logger
	kernel *sockets
	marks  *fwmarks
	quit   chan struct{}
	done   chan struct{}
	now    func() time.Time

	mu        sync.Mutex
	deadlines map[Key]map[Key]time.Time // by virtual server
	failing   bool                      // the last check failed
}

func startDrains(k *sockets, marks *fwmarks, log *slog.Logger) *drains {
	d := &drains{
		log:    log,
		kernel: k, marks: marks, now: time.Now, deadlines: map[Key]map[Key]time.Time{},
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	go d.run()
	return d
}

func (d *drains) run() {
	defer close(d.done)
	timer := time.NewTimer(drainCheck)
	defer timer.Stop()
	for {
		select {
		case <-d.quit:
			return
		case <-timer.C:
			begun := time.Now()
			d.check()
			timer.Reset(min(max(drainCheck, drainShare*time.Since(begun)), time.Minute))
		}
	}
}

func (d *drains) stop() {
	close(d.quit)
	<-d.done
	d.kernel.close()
}

// add adds a destination whose weight is 0.
func (d *drains) add(dest Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	server := dest.serverOf()
	if d.deadlines[server] == nil {
		d.deadlines[server] = map[Key]time.Time{}
	}
	if _, known := d.deadlines[server][dest]; !known {
		d.deadlines[server][dest] = d.now().Add(drainLimit)
	}
}

// cancel removes a destination, and reports whether it was draining.
func (d *drains) cancel(dest Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	server := dest.serverOf()
	_, draining := d.deadlines[server][dest]
	delete(d.deadlines[server], dest)
	return draining
}

// forget removes all destinations of a virtual server.
func (d *drains) forget(server Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.deadlines, server)
}

// check deletes destinations that are idle or past their deadline. It delays a Commit by at most one
// deletion, however many drain. Failures are retried by the next check; only the first one is logged.
func (d *drains) check() {
	d.mu.Lock()
	servers := make([]Key, 0, len(d.deadlines))
	for server := range d.deadlines {
		servers = append(servers, server)
	}
	d.mu.Unlock()
	var failed error
	for _, server := range servers {
		if err := d.checkServer(server); err != nil && failed == nil {
			failed = wrap(server.String(), err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if failed != nil && !d.failing {
		d.log.Warn("checking draining IPVS destinations failed", "mode", Name, "err", failed, "retry", drainCheck)
	}
	d.failing = failed != nil
}

func (d *drains) checkServer(server Key) (failed error) {
	d.mu.Lock()
	draining := maps.Clone(d.deadlines[server])
	if len(draining) == 0 {
		delete(d.deadlines, server)
	}
	d.mu.Unlock()
	if len(draining) == 0 {
		return nil
	}
	id, known := d.marks.id(server)
	if !known { // a Commit deleted it after Observe had read its destinations
		d.forget(server)
		return nil
	}
	have, err := d.kernel.servers.Destinations(id)
	if err != nil {
		return err
	}
	for _, dest := range have {
		k := server.dest(dest.Addr)
		until, ok := draining[k]
		if !ok || dest.Weight != 0 {
			continue
		}
		delete(draining, k)
		if dest.Connections > 0 && d.now().Before(until) {
			continue
		}
		if err := d.end(server, k, until, func() error { return d.kernel.servers.DeleteDestination(id, dest.Addr) }); err != nil {
			failed = err
		}
	}
	for k, until := range draining { // deleted by another program, or in use again
		_ = d.end(server, k, until, func() error { return nil })
	}
	return failed
}

// end removes a destination and ends its drain, unless a Commit has ended or restarted the drain since the check read it.
func (d *drains) end(server, dest Key, until time.Time, remove func() error) error {
	runtime.Gosched() // lets a waiting Commit go first
	d.mu.Lock()
	defer d.mu.Unlock()
	if now, draining := d.deadlines[server][dest]; !draining || !now.Equal(until) {
		return nil
	}
	if err := remove(); err != nil {
		return err
	}
	delete(d.deadlines[server], dest)
	return nil
}
