// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
)

// Net is a network of namespaces. It is safe for concurrent use.
type Net struct {
	plan  Plan
	ports atomic.Uint32 // source ports given out

	use    sync.RWMutex // held for reading while a namespace is in use
	spaces map[Place]*space
	closed bool

	mu      sync.Mutex
	servers map[*Server]struct{} // nil once the network is closing
	turns   map[pair]*sync.Mutex // of SCTP clients, see sctp_linux.go
}

// space is one namespace.
type space struct {
	ns    vns.NsHandle
	links *netlink.Handle
}

// New builds a network. When it fails nothing of it is left.
func New(ctx context.Context, plan Plan) (*Net, error) {
	if err := plan.check(); err != nil {
		return nil, fmt.Errorf("network plan: %w", err)
	}
	n := &Net{plan: plan, spaces: map[Place]*space{}, servers: map[*Server]struct{}{}, turns: map[pair]*sync.Mutex{}}
	if err := n.build(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// ErrClosed is the result of using a Net after Close.
var ErrClosed = errors.New("the network of namespaces is closed")

// Do runs f on a thread inside the namespace of a place. Sockets that f opens
// stay there, and so do processes that it starts; goroutines do not, so f must
// do its work itself. Close waits for f, which must not call Do or Close.
func (n *Net) Do(at Place, f func() error) error {
	n.use.RLock()
	defer n.use.RUnlock()
	if n.closed {
		return ErrClosed
	}
	s := n.spaces[at]
	if s == nil {
		return fmt.Errorf("no place %q in this network", at)
	}
	return inside(s.ns, f)
}

// PlaceOf tells where an address is.
func (n *Net) PlaceOf(a netip.Addr) (Place, bool) { return n.plan.PlaceOf(a) }

// Close stops the servers and removes the namespaces. Sockets that are still
// open elsewhere keep theirs until they are closed, too. It may be called more
// than once.
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
		if s.links != nil {
			s.links.Close()
		}
		if err := s.ns.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the namespace of %s: %w", place, err))
		}
		delete(n.spaces, place)
	}
	return errors.Join(errs...)
}

// open makes the namespace of a place.
func (n *Net) open(at Place, settings []sysctl) (*space, error) {
	s := &space{ns: vns.None()}
	err := onThread(func() (err error) {
		if s.ns, err = vns.New(); err != nil {
			return explain(err)
		}
		if err := write(settings); err != nil {
			return err
		}
		if s.links, err = netlink.NewHandle(); err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		return nil
	})
	if s.ns.IsOpen() {
		n.spaces[at] = s
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return s, s.up("lo")
}
