// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// SetSuspects replaces the addresses of endpoints that have stopped answering.
func (e *Engine) SetSuspects(s model.Suspects) {
	e.inbox.put(task{about: subject{kind: theSuspects}, do: func(since time.Time) {
		e.tracker.SetSuspects(s)
		e.change(since)
	}})
}

// RemoteOf returns the ready endpoints on other nodes that a TCP frontend may lead to.
func (e *Engine) RemoteOf(ctx context.Context, frontend netip.AddrPort) ([]track.Endpoint, error) {
	return ask(ctx, e.inbox, func() []track.Endpoint { return e.tracker.RemoteOf(frontend) })
}

// Neighbours are the ready TCP endpoints on one other node, and how many addresses have
// some on any.
type Neighbours struct {
	On  []track.Endpoint
	All int
}

// maxNeighbours is more than a node can have pods.
const maxNeighbours = 1024

// RemoteOn looks at all endpoints, for those on a node.
func (e *Engine) RemoteOn(ctx context.Context, node string) (Neighbours, error) {
	return ask(ctx, e.inbox, func() (n Neighbours) {
		addrs := map[netip.Addr]struct{}{}
		e.tracker.Remote(func(at track.Endpoint) {
			addrs[at.At.Addr()] = struct{}{}
			if node != "" && at.Node == node && len(n.On) < maxNeighbours {
				n.On = append(n.On, at)
			}
		})
		n.All = len(addrs)
		return n
	})
}
