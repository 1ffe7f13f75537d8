// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

// balanced is what IPVS has done with a packet. No rule shows its choice, and without
// net.ipv4.vs.conntrack, or where a later rule drops the packet, conntrack does not either; its own
// table has an entry from the first packet on. Its counters would be those of all clients.
type balanced struct {
	before    map[netip.AddrPort]struct{} // clients that had such a connection before
	chosen    *virtualserver.Connection
	untracked bool // conntrack gets nothing of IPVS's connections
}

// mostBefore bounds the clients that are remembered.
const mostBefore = 1 << 16

// followIPVS begins to follow a packet; nil where the mode is another.
func (l *live) followIPVS(ctx context.Context) (*balanced, error) {
	if l.trace.Mode != string(ipvs.Name) {
		return nil, nil
	}
	tracked, err := host.Sysctl("net/ipv4/vs/conntrack")
	b := &balanced{before: map[netip.AddrPort]struct{}{}, untracked: err == nil && tracked == "0"}
	return b, virtualserver.Connections(ctx, func(c virtualserver.Connection) {
		if l.sameWay(c) && len(b.before) < mostBefore {
			b.before[c.Client] = struct{}{}
		}
	})
}

// sameWay reports whether a connection is one of those that may be the packet's.
func (l *live) sameWay(c virtualserver.Connection) bool {
	p := l.packet
	return c.Proto == p.Proto && c.Dst == p.Dst && (!p.Src.IsValid() || p.Src == c.Client.Addr()) && (p.Sport == 0 || p.Sport == c.Client.Port())
}

// balance looks for the packet's connection.
func (l *live) balance(ctx context.Context) error {
	if l.ipvs == nil {
		return nil
	}
	return virtualserver.Connections(ctx, func(c virtualserver.Connection) {
		_, old := l.ipvs.before[c.Client]
		if l.sameWay(c) && l.ipvs.chosen == nil && (l.flow != nil && l.flow.Src == c.Client || l.flow == nil && !old) {
			l.ipvs.chosen = &c
		}
	})
}

// steps are the objects that the packet met in IPVS.
func (b *balanced) steps() []string {
	if b == nil || b.chosen == nil {
		return nil
	}
	c := b.chosen
	all := []string{fmt.Sprintf("ipvs: %s -> %s sent to %s (%s)", c.Client, c.Dst, c.To, c.State)}
	if b.untracked {
		all = append(all, "ipvs: not tracked, and with no SNAT: sysctl net.ipv4.vs.conntrack is 0")
	}
	return all
}

// alone reports whether only IPVS knows the packet's connection.
func (b *balanced) alone() bool { return b != nil && b.chosen != nil && b.untracked }
