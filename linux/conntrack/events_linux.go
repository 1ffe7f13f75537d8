// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// NewFlow is a flow whose first packet has passed all rules.
type NewFlow struct {
	Proto    model.Proto
	Src, Dst netip.AddrPort // as its client sent it
	To, Sees netip.AddrPort // the endpoint it was sent to, and the client as that sees it
}

// Translated reports whether rules gave it another destination.
func (f NewFlow) Translated() bool { return f.To != f.Dst }

// NewFlows receives notices of new flows, in the network namespace of the thread that opens it.
type NewFlows struct{ listener *netlink.Listener }

// ListenNew opens it. It receives flows from then on.
func ListenNew() (*NewFlows, error) {
	l, err := netlink.Listen(netlink.GroupNewFlows)
	if err != nil {
		return nil, fmt.Errorf("conntrack events: %w", err)
	}
	return &NewFlows{l}, nil
}

// Close ends it.
func (n *NewFlows) Close() error { return n.listener.Close() }

// Each calls handle for new flows until ctx ends, or handle returns done.
func (n *NewFlows) Each(ctx context.Context, handle func(NewFlow) (done bool)) error {
	return n.listener.Each(ctx, func(m netlink.Message) bool {
		flow, ok := newFlow(m)
		return ok && handle(flow)
	})
}

// newFlow reads a notice.
func newFlow(m netlink.Message) (f NewFlow, ok bool) {
	if m.Type != msgNew {
		return f, false
	}
	var orig, reply tuple
	var okOrig, okReply bool
	for kind, value := range m.Attrs() {
		switch kind {
		case ctaTupleOrig:
			orig, okOrig = parseTuple(value)
		case ctaTupleReply:
			reply, okReply = parseTuple(value)
		}
	}
	return NewFlow{Proto: orig.proto, Src: orig.src, Dst: orig.dst, To: reply.src, Sees: reply.dst}, okOrig && okReply
}
