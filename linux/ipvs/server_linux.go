package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// flagOurs marks a virtual server as ours. The kernel keeps flags that it does
// not know, and ipvsadm does not show them.
const flagOurs = 1 << 24

// numbers is a numbering that Commit and Observe share.
type numbers struct {
	sync.Mutex
	*numbering
}

// number returns the number of a server by mark, which it is given if need be.
func (n *numbers) number(server Key) (uint32, error) {
	n.Lock()
	defer n.Unlock()
	return n.take(server)
}

// known notes the number of a server that was found, unless a Commit has given
// it or the server to another meanwhile.
func (n *numbers) known(server Key, number uint32) {
	n.Lock()
	defer n.Unlock()
	_, has := n.of[server]
	_, taken := n.used[server.Family][number]
	if !has && !taken {
		n.bind(server, number)
	}
}

// orphans notes the numbers of those that were found, and of no others: whoever
// was given one would go when the orphan does.
func (n *numbers) orphans(m marks, found []Key) {
	n.Lock()
	for k := range n.of {
		if k.Via == Orphan && !slices.Contains(found, k) {
			n.free(k)
		}
	}
	n.Unlock()
	for _, k := range found {
		if number, _ := m.parse(k.Mark); number != 0 {
			n.known(k, number)
		}
	}
}

func (n *numbers) release(server Key) {
	n.Lock()
	defer n.Unlock()
	n.free(server)
}

func (n *numbers) mark(m marks, k Key, v Value) (Mark, error) {
	if v.Via == ByAddress {
		return v.Mark, nil
	}
	number, err := n.number(serverFor(k, v))
	return Mark{m.number(number, v.Via), v.Mark.Mask}, err
}

// service is a virtual server as IPVS wants it named.
func (d *Driver) service(k Key) (*ipvs.Service, error) {
	s := &ipvs.Service{AddressFamily: uint16(netlinkFamily(k.Family)), Netmask: ^uint32(0)}
	if k.Family == model.IPv6 {
		s.Netmask = 128
	}
	if k.Via == ByAddress {
		s.Protocol, s.Address, s.Port = uint16(k.Proto), k.At.Addr().AsSlice(), k.At.Port()
		return s, nil
	}
	if k.Via == Orphan {
		s.FWMark = k.Mark
		return s, nil
	}
	number, err := d.numbers.number(k)
	s.FWMark = d.marks.number(number, k.Via)
	return s, err
}

func destination(to netip.AddrPort, weight int) *ipvs.Destination {
	return &ipvs.Destination{Address: to.Addr().AsSlice(), Port: to.Port(), Weight: weight, ConnectionFlags: ipvs.ConnectionFlagMasq}
}

// server makes, changes or deletes a virtual server.
func (c *commit) server(op ledger.Op[Key, Value]) error {
	s, err := c.service(op.Key)
	if err != nil {
		return wrap(op.Key.String(), err)
	}
	s.SchedName, s.Flags, s.Timeout = op.New.Scheduler, op.New.Flags|flagOurs, op.New.Timeout
	h := c.kernel.ipvs
	switch op.Verb {
	case ledger.Delete:
		c.drains.forget(op.Key)
		err = but(h.DelService(s), unix.ESRCH, unix.ENOENT)
		if err == nil && op.Key.Via != ByAddress {
			c.numbers.release(op.Key)
		}
	case ledger.Replace:
		err = missed(h.UpdateService(s))
	default:
		if err = h.NewService(s); errors.Is(err, unix.EEXIST) {
			err = c.takeOver(op.Key, s)
		}
	}
	return wrap(op.Key.String(), err)
}

// takeOver makes a virtual server ours that is there already: kube-proxy's, or
// one whose making was interrupted. Destinations that it has and shall not have
// drain.
func (c *commit) takeOver(k Key, s *ipvs.Service) error {
	if err := c.spare(k, s); err != nil {
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
		if to := destKey(k, d); !c.wants(k, to.To) {
			if err := c.release(to, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// spare is an error for a virtual server of somebody else's that is never
// touched, nor any of its destinations.
func (d *Driver) spare(k Key, s *ipvs.Service) error {
	if k.Via != ByAddress || !slices.ContainsFunc(d.exclude, func(p netip.Prefix) bool { return p.Contains(k.At.Addr()) }) {
		return nil
	}
	have, err := d.kernel.ipvs.GetService(s)
	if err != nil {
		return but(err, unix.ESRCH, unix.ENOENT)
	}
	if have.Flags&flagOurs == 0 {
		return fmt.Errorf("somebody else has virtual server %s, and its address is excluded: %w", k.server(), unix.EEXIST)
	}
	return nil
}

// wants reports whether this commit makes a destination.
func (c *commit) wants(server Key, to netip.AddrPort) bool {
	if c.wanted == nil {
		c.wanted = map[Key]map[netip.AddrPort]bool{}
		for _, op := range c.ops {
			if op.Key.Kind != KindDest || op.Verb == ledger.Delete {
				continue
			}
			s := op.Key.serverOf()
			if c.wanted[s] == nil {
				c.wanted[s] = map[netip.AddrPort]bool{}
			}
			c.wanted[s][op.Key.To] = true
		}
	}
	return c.wanted[server][to]
}

// destKey is the key of a destination.
func destKey(server Key, d *ipvs.Destination) Key {
	a, _ := netip.AddrFromSlice(d.Address)
	server.Kind, server.To = KindDest, netip.AddrPortFrom(a.Unmap(), d.Port)
	return server
}

// dest makes a destination or has it drain. One that is there already, draining
// or not, is used again.
func (c *commit) dest(op ledger.Op[Key, Value]) error {
	server := op.Key.serverOf()
	if c.gone[server] {
		return nil
	}
	s, err := c.service(server)
	if err != nil {
		return wrap(op.Key.String(), err)
	}
	if err := c.spare(server, s); err != nil {
		return wrap(op.Key.String(), err)
	}
	if op.Verb == ledger.Delete {
		return wrap(op.Key.String(), c.release(op.Key, s))
	}
	h := c.kernel.ipvs
	if c.drains.stays(op.Key) {
		if err = h.UpdateDestination(s, destination(op.Key.To, 1)); !errors.Is(err, unix.ENOENT) {
			return wrap(op.Key.String(), err)
		}
	}
	if err = h.NewDestination(s, destination(op.Key.To, 1)); errors.Is(err, unix.EEXIST) {
		err = h.UpdateDestination(s, destination(op.Key.To, 1))
	}
	if !c.unmade[server] {
		err = missed(err)
	}
	return wrap(op.Key.String(), err)
}

// missed says of an error that a virtual server of ours is not there that it was
// somebody else who took it away, and maybe more: all must be read back.
func missed(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("somebody else has deleted the virtual server: %w: %w", err, ledger.ErrUnknown)
	}
	return err
}

// release takes a destination out of the choice: that of TCP keeps its
// connections until they end, all others go at once.
func (c *commit) release(k Key, s *ipvs.Service) error {
	h := c.kernel.ipvs
	if k.Proto != model.TCP {
		return but(h.DelDestination(s, destination(k.To, 0)), unix.ENOENT, unix.ESRCH)
	}
	err := h.UpdateDestination(s, destination(k.To, 0))
	if err == nil {
		c.drains.add(k)
	}
	return but(err, unix.ENOENT, unix.ESRCH)
}
