// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// Draining destinations are checked every drainCheck, and deleted after drainLimit in
// any case: then IPVS itself expires an idle TCP connection.
const (
	drainCheck = 2 * time.Second
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
	tick := time.NewTicker(drainCheck)
	defer tick.Stop()
	for {
		select {
		case <-d.quit:
			return
		case <-tick.C:
			d.check()
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

// check deletes destinations that are idle or past their deadline. It handles one
// virtual server at a time, so that a Commit never waits for long. Failures are
// retried by the next check; only the first one is logged.
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
	defer d.mu.Unlock()
	if len(d.deadlines[server]) == 0 {
		delete(d.deadlines, server)
		return nil
	}
	id, err := d.marks.id(server)
	if err != nil {
		return err
	}
	have, err := d.kernel.servers.Destinations(id)
	if err != nil {
		return err
	}
	left := map[Key]bool{}
	for _, dest := range have {
		k := server.dest(dest.Addr)
		until, draining := d.deadlines[server][k]
		if !draining || dest.Weight != 0 {
			continue
		}
		if dest.Connections > 0 && d.now().Before(until) {
			left[k] = true
			continue
		}
		if err := d.kernel.servers.DeleteDestination(id, dest.Addr); err != nil {
			left[k], failed = true, err
		}
	}
	for k := range d.deadlines[server] {
		if !left[k] {
			delete(d.deadlines[server], k)
		}
	}
	return failed
}

// servers creates, changes and deletes virtual servers and their destinations. One
// goroutine may use it at a time.
type servers struct {
	kernel  *sockets
	marks   *fwmarks
	drains  *drains
	exclude []netip.Prefix // foreign virtual servers with these addresses are never touched
}

// serverCommit are the ops of one Commit on virtual servers and destinations.
type serverCommit struct {
	*servers
	ops []ledger.Op[Key, Value]

	deleted map[Key]bool // servers that are deleted, with their destinations
	failed  map[Key]bool // servers that could not be created or changed

	wanted map[Key]map[Peer]bool // destinations by server; filled by wants
}

func (s *servers) begin(ops []ledger.Op[Key, Value]) *serverCommit {
	c := &serverCommit{servers: s, ops: ops, deleted: map[Key]bool{}, failed: map[Key]bool{}}
	for _, op := range ops {
		if op.Verb == ledger.Delete && op.Key.Kind == kindServer {
			c.deleted[op.Key] = true
		}
	}
	return c
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
	id, err := c.marks.id(op.Key)
	if err != nil {
		return wrap(op.Key.String(), err)
	}
	s := op.New.Server
	s.Flags |= flagOwned
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

// checkExcluded returns an error for a foreign virtual server in an excluded range:
// neither it nor its destinations are touched.
func (c *servers) checkExcluded(k Key, id virtualserver.ID) error {
	if k.Via != ByAddress || !slices.ContainsFunc(c.exclude, func(p netip.Prefix) bool { return p.Contains(k.Dst.Addr()) }) {
		return nil
	}
	have, exists, err := c.kernel.servers.Get(id)
	if exists && have.Flags&flagOwned == 0 {
		return fmt.Errorf("virtual server %s is not owned by Tandem and its address is excluded: %w", k.server(), virtualserver.ErrExists)
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
// reused.
func (c *serverCommit) dest(op ledger.Op[Key, Value]) error {
	server := op.Key.serverOf()
	if c.deleted[server] {
		return nil
	}
	id, err := c.marks.id(server)
	if err != nil {
		return wrap(op.Key.String(), err)
	}
	if err := c.checkExcluded(server, id); err != nil {
		return wrap(op.Key.String(), err)
	}
	if op.Verb == ledger.Delete {
		return wrap(op.Key.String(), c.removeDest(op.Key, id))
	}
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

// deletedExternally turns "no such virtual server" into an external change: more may
// have changed, so everything must be read back.
func deletedExternally(err error) error {
	if errors.Is(err, virtualserver.ErrNoServer) {
		return fmt.Errorf("the virtual server was deleted externally: %w: %w", err, ledger.ErrUnknown)
	}
	return err
}

// removeDest drains a TCP destination, so that its connections can end, and deletes
// any other at once.
func (c *serverCommit) removeDest(k Key, id virtualserver.ID) error {
	if k.Proto != model.TCP {
		return c.kernel.servers.DeleteDestination(id, k.Peer.endpoint())
	}
	err := c.kernel.servers.SetWeight(id, k.Peer.endpoint(), 0)
	if err == nil {
		c.drains.add(k)
	}
	return ignore(err, virtualserver.ErrNoDestination, virtualserver.ErrNoServer)
}

// Drain implements dataplane.Drainer. New connections are left to the next mode from
// now on; each virtual server is deleted when it has no connections, after drainLimit
// at the latest. All other objects stay until then: packets of existing connections
// are still marked, delivered locally and forwarded.
func (d *Driver) Drain(ctx context.Context) error {
	var own []netip.Addr
	err := d.tables.ns.Do(func() (err error) { own, err = nodeAddresses(); return err })
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
			d.log.Warn("counting IPVS connections failed", "mode", Name, "err", err, "retry", drainCheck)
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

// deleteIdle deletes our virtual servers that have no TCP connections and sets the
// weights of all others to 0. It returns how many there were, including those just
// deleted: the next packet of a UDP flow must still reach IPVS, which then deletes
// the flow (expire_nodest_conn).
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
