// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/core/sleep"
)

// Net is a network of namespaces. It is safe for concurrent use.
type Net struct {
	plan  Plan
	ports atomic.Uint32 // source ports given out

	use    sync.RWMutex // held for reading while a namespace is in use
	spaces map[Place]*space
	closed bool

	mu      sync.Mutex
	servers map[io.Closer]struct{} // nil once the network is closing
	turns   map[pair]*sync.Mutex   // of SCTP clients
}

// pair is a place and an address that only one of its SCTP clients contacts at a time.
type pair struct {
	from Place
	to   netip.Addr
}

// New builds a network. If it fails nothing is left behind.
func New(ctx context.Context, plan Plan) (*Net, error) {
	if err := plan.check(); err != nil {
		return nil, fmt.Errorf("network plan: %w", err)
	}
	n := &Net{plan: plan, spaces: map[Place]*space{}, servers: map[io.Closer]struct{}{}, turns: map[pair]*sync.Mutex{}}
	if err := n.build(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// ErrClosed is returned when a Net is used after Close.
var ErrClosed = errors.New("the network of namespaces is closed")

// Do runs f on a thread inside the namespace of a place. Sockets that f opens and
// processes that it starts stay there; goroutines do not, so f must start none. Close
// waits for f, which must not call Do or Close.
func (n *Net) Do(at Place, f func() error) error {
	n.use.RLock()
	defer n.use.RUnlock()
	if n.closed {
		return ErrClosed
	}
	s := n.spaces[at]
	if s == nil {
		return fmt.Errorf("no place %q in the network", at)
	}
	return inside(s.ns, f)
}

// PlaceOf returns the place that has an address.
func (n *Net) PlaceOf(a netip.Addr) (Place, bool) { return n.plan.PlaceOf(a) }

// Close stops the servers and removes the namespaces. Open sockets keep theirs until
// they are closed, too. It may be called more than once.
func (n *Net) Close() error {
	var errs []error
	n.mu.Lock()
	servers := n.servers
	n.servers = nil
	n.mu.Unlock()
	for s := range servers {
		errs = append(errs, s.Close())
	}
	n.use.Lock()
	defer n.use.Unlock()
	n.closed = true
	for place, s := range n.spaces {
		if err := s.close(); err != nil {
			errs = append(errs, fmt.Errorf("close the namespace of %s: %w", place, err))
		}
		delete(n.spaces, place)
	}
	return errors.Join(errs...)
}

// build makes the namespaces and joins them.
func (n *Net) build(ctx context.Context) error {
	v6 := false
	for _, addrs := range n.plan.all {
		v6 = v6 || slices.ContainsFunc(addrs, netip.Addr.Is6)
	}
	if v6 && !haveIPv6() {
		return errors.New("the plan has IPv6 addresses, but IPv6 is disabled in this kernel")
	}
	node, err := n.openNode()
	if err != nil {
		return err
	}
	b := builder{Net: n, node: node, v6: v6}
	// The uplink comes first: on a link without an address, such as those of pods,
	// the kernel masquerades with the first address it finds.
	if err := b.joinOutside(n.plan.Prefix + uplink); err != nil {
		return err
	}
	if err := b.joinMany(Others, n.plan.Prefix+crosslink, n.plan.Others); err != nil {
		return err
	}
	if err := b.reach(n.plan.Prefix+crosslink, n.plan.Others); err != nil {
		return err
	}
	for _, pod := range n.plan.Pods {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.join(pod.Place, pod.Interface, pod.Addrs, everywhere()); err != nil {
			return err
		}
		if err := b.reach(pod.Interface, pod.Addrs); err != nil {
			return err
		}
	}
	return n.ready(ctx)
}

// openNode makes the node's namespace, or takes the present one.
func (n *Net) openNode() (*space, error) {
	if !n.plan.Here {
		return n.open(Node, append(everywhere(), router()...))
	}
	s, err := thisSpace()
	if err == nil {
		n.spaces[Node] = s
	}
	return s, err
}

// joinOutside connects the outside: by the node's default route, where the node is
// this network's.
func (b *builder) joinOutside(link string) error {
	if err := b.joinMany(Outside, link, b.plan.Outside); err != nil {
		return err
	}
	if b.plan.Here {
		return b.reach(link, b.plan.Outside)
	}
	if err := b.node.assign(link, b.plan.Node); err != nil {
		return err
	}
	return b.node.defaultRoute(link, far, b.peerMAC(), b.v6)
}

// builder connects the namespaces of places to the node.
type builder struct {
	*Net
	node  *space
	v6    bool
	count byte // links so far
	high  byte
}

func (b *builder) nodeMAC() net.HardwareAddr { return net.HardwareAddr{2, 0, 0, b.high, b.count, 1} }

func (b *builder) peerMAC() net.HardwareAddr { return net.HardwareAddr{2, 0, 0, b.high, b.count, 2} }

// join makes the namespace of a place and its link to the node, which is called
// name on the node's side and eth0 on the other.
func (b *builder) join(at Place, name string, addrs []netip.Addr, settings []sysctl) error {
	if b.count++; b.count == 0 {
		b.high++
	}
	s, err := b.open(at, settings)
	if err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: b.nodeMAC()},
		PeerName:  uplink, PeerHardwareAddr: b.peerMAC(), PeerNamespace: netlink.NsFd(s.ns),
	}
	if err := b.node.links.LinkAdd(veth); err != nil {
		return fmt.Errorf("link %s to %s: %w", name, at, err)
	}
	b.node.made = append(b.node.made, name)
	if err := b.node.up(name); err != nil {
		return err
	}
	if err := s.up(uplink); err != nil {
		return err
	}
	if err := s.assign(uplink, addrs); err != nil {
		return err
	}
	return s.defaultRoute(uplink, near, b.nodeMAC(), b.v6)
}

// joinMany connects a place that simulates many machines.
func (b *builder) joinMany(at Place, name string, addrs []netip.Addr) error {
	if err := b.join(at, name, addrs, append(everywhere(), manyMachines()...)); err != nil {
		return err
	}
	families := []int{netlink.FAMILY_V4}
	if b.v6 {
		families = append(families, netlink.FAMILY_V6)
	}
	for _, family := range families {
		if err := b.spaces[at].separate(family); err != nil {
			return fmt.Errorf("routing rules of %s: %w", at, err)
		}
	}
	return nil
}

// reach gives the node routes to addresses behind a link.
func (b *builder) reach(name string, addrs []netip.Addr) error {
	link, err := b.node.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	for _, a := range addrs {
		if err := b.node.neighbour(link, a, b.peerMAC()); err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: whole(a), Scope: netlink.SCOPE_LINK}
		if err := b.node.links.RouteAdd(route); err != nil {
			return fmt.Errorf("route to %s by %s: %w", a, name, err)
		}
	}
	return nil
}

// open makes the namespace of a place.
func (n *Net) open(at Place, settings []sysctl) (*space, error) {
	s, err := newSpace(settings)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	n.spaces[at] = s
	return s, nil
}

// ready waits until all links and addresses carry packets. The kernel finishes some
// of its work asynchronously: a link that is up on both sides still drops the first
// packets, and an IPv6 address exists before packets to it are accepted.
func (n *Net) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for place, addrs := range n.plan.all {
		if n.spaces[place].present {
			addrs = nil // they were there before
		}
		for {
			waiting, err := n.spaces[place].unready(addrs)
			if err != nil {
				return fmt.Errorf("%s: %w", place, err)
			}
			if waiting == "" {
				break
			}
			if !sleep.For(ctx, time.Millisecond) {
				return fmt.Errorf("%s: %s is not ready: %w", place, waiting, ctx.Err())
			}
		}
	}
	return nil
}
