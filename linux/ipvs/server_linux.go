// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// flagOurs marks a virtual server as ours. The kernel keeps flags that it does
// not know, and ipvsadm does not show them.
const flagOurs = 1 << 24

// servers makes, changes and deletes virtual servers and their destinations. It is
// used by one goroutine at a time.
type servers struct {
	kernel  *sockets
	marks   *fwmarks
	drains  *drains
	exclude []netip.Prefix // virtual servers of others in here are never touched
}

// serverCommit are the ops of one Commit on virtual servers and destinations.
type serverCommit struct {
	*servers
	ops []ledger.Op[Key, Value]

	deleted map[Key]bool // servers that are deleted, with all that they have
	failed  map[Key]bool // servers that could not be created or changed

	wanted map[Key]map[Peer]bool // destinations by server; filled by wants
}

func (s *servers) begin(ops []ledger.Op[Key, Value]) *serverCommit {
	c := &serverCommit{servers: s, ops: ops, deleted: map[Key]bool{}, failed: map[Key]bool{}}
	for _, op := range ops {
		if op.Verb == ledger.Delete && op.Key.Kind == KindServer {
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
	s, err := service(c.marks, op.Key)
	if err != nil {
		return wrap(op.Key.String(), err)
	}
	s.SchedName, s.Flags, s.Timeout = op.New.Scheduler, op.New.Flags|flagOurs, op.New.Timeout
	h := c.kernel.ipvs
	switch op.Verb {
	case ledger.Delete:
		c.drains.forget(op.Key)
		err = ignore(h.DelService(s), unix.ESRCH, unix.ENOENT)
		if err == nil && op.Key.Via != ByAddress {
			c.marks.release(op.Key)
		}
	case ledger.Replace:
		err = deletedExternally(h.UpdateService(s))
	default:
		if err = h.NewService(s); errors.Is(err, unix.EEXIST) {
			err = c.adopt(op.Key, s)
		}
	}
	return wrap(op.Key.String(), err)
}

// adopt makes an existing virtual server ours: kube-proxy's, or
// one whose making was interrupted. Destinations that it has and shall not have
// drain.
func (c *serverCommit) adopt(k Key, s *ipvs.Service) error {
	if err := c.checkExcluded(k, s); err != nil {
		return err
	}
	if err := c.kernel.ipvs.UpdateService(s); err != nil {
		return err
	}
	have, err := c.kernel.ipvs.GetDestinations(s)
	if err != nil {
		return err
	}
	for _, d := range have {
		if to := destKey(k, d); !c.wants(k, to.Peer) {
			if err := c.removeDest(to, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkExcluded is an error for a virtual server that is not owned and in an excluded
// range: neither it nor its destinations are touched.
func (c *servers) checkExcluded(k Key, s *ipvs.Service) error {
	if k.Via != ByAddress || !slices.ContainsFunc(c.exclude, func(p netip.Prefix) bool { return p.Contains(k.Dst.Addr()) }) {
		return nil
	}
	have, err := c.kernel.ipvs.GetService(s)
	if err != nil {
		return ignore(err, unix.ESRCH, unix.ENOENT)
	}
	if have.Flags&flagOurs == 0 {
		return fmt.Errorf("virtual server %s is not owned by Tandem and its address is excluded: %w", k.server(), unix.EEXIST)
	}
	return nil
}

// wants reports whether this commit makes a destination.
func (c *serverCommit) wants(server Key, to Peer) bool {
	if c.wanted == nil {
		c.wanted = map[Key]map[Peer]bool{}
		for _, op := range c.ops {
			if op.Key.Kind != KindDest || op.Verb == ledger.Delete {
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

// dest makes a destination or has it drain. One that is there already, draining
// or not, is used again.
func (c *serverCommit) dest(op ledger.Op[Key, Value]) error {
	server := op.Key.serverOf()
	if c.deleted[server] {
		return nil
	}
	s, err := service(c.marks, server)
	if err != nil {
		return wrap(op.Key.String(), err)
	}
	if err := c.checkExcluded(server, s); err != nil {
		return wrap(op.Key.String(), err)
	}
	if op.Verb == ledger.Delete {
		return wrap(op.Key.String(), c.removeDest(op.Key, s))
	}
	h := c.kernel.ipvs
	if c.drains.cancel(op.Key) {
		if err = h.UpdateDestination(s, destination(op.Key, 1)); !errors.Is(err, unix.ENOENT) {
			return wrap(op.Key.String(), err)
		}
	}
	if err = h.NewDestination(s, destination(op.Key, 1)); errors.Is(err, unix.EEXIST) {
		err = h.UpdateDestination(s, destination(op.Key, 1))
	}
	if !c.failed[server] {
		err = deletedExternally(err)
	}
	return wrap(op.Key.String(), err)
}

// deletedExternally marks the error that a virtual server of ours does not exist as an
// external change, of maybe more: everything must be read back.
func deletedExternally(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("the virtual server was deleted externally: %w: %w", err, ledger.ErrUnknown)
	}
	return err
}

// removeDest drains a destination of TCP, which keeps its connections until they
// end, and deletes any other at once.
func (c *serverCommit) removeDest(k Key, s *ipvs.Service) error {
	h := c.kernel.ipvs
	if k.Proto != model.TCP {
		return ignore(h.DelDestination(s, destination(k, 0)), unix.ENOENT, unix.ESRCH)
	}
	err := h.UpdateDestination(s, destination(k, 0))
	if err == nil {
		c.drains.add(k)
	}
	return ignore(err, unix.ENOENT, unix.ESRCH)
}
