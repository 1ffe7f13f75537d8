// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// servers creates, changes and deletes virtual servers and their destinations. One
// goroutine may use it at a time.
type servers struct {
	kernel  *sockets
	marks   *fwmarks
	drains  *drains
	exclude []netip.Prefix // foreign virtual servers with these addresses are never touched
	refuses bool           // the scheduler chooses what drains, too: see refusesWhileDraining
}

// serverCommit are the ops of one Commit on virtual servers and destinations.
type serverCommit struct {
	*servers
	ops []ledger.Op[Key, Value]

	deleted map[Key]bool // servers that are deleted, with their destinations
	failed  map[Key]bool // servers that could not be created or changed
	short   map[Key]bool // servers that lack a destination, which could not be created

	wanted map[Key]map[Peer]bool // destinations by server; filled by wants
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
// reused. The last one stays while those that come instead cannot be created: see Last.
func (c *serverCommit) dest(op ledger.Op[Key, Value]) (err error) {
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

// errLast is why a destination is not deleted.
var errLast = errors.New("kept: it is the last one, and the next could not be created")

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

// deletedExternally turns "no such virtual server" into an external change: more may
// have changed, so everything must be read back.
func deletedExternally(err error) error {
	if errors.Is(err, virtualserver.ErrNoServer) {
		return fmt.Errorf("the virtual server was deleted externally: %w: %w", err, ledger.ErrUnknown)
	}
	return err
}

// refusesWhileDraining reports whether a scheduler refuses new connections for which it
// chooses a destination of weight 0, and has no flag to choose another: dh sends all
// clients of an address to one destination (ip_vs_dh_schedule, Linux
// net/netfilter/ipvs/ip_vs_dh.c).
func refusesWhileDraining(scheduler string) bool { return scheduler == "dh" }

// removeDest drains a TCP destination, so that its connections can end, and deletes
// any other at once.
func (c *serverCommit) removeDest(k Key, id virtualserver.ID) error {
	if k.Proto != model.TCP || c.refuses {
		return c.kernel.servers.DeleteDestination(id, k.Peer.endpoint())
	}
	err := c.kernel.servers.SetWeight(id, k.Peer.endpoint(), 0)
	if err == nil {
		c.drains.add(k)
	}
	return ignore(err, virtualserver.ErrNoDestination, virtualserver.ErrNoServer)
}
