// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"log/slog"
	"net"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/conntrack"
)

// The kernel remembers where it sent the first datagram of a flow. When an entry
// leads elsewhere from now on, that memory is stale; as long as it leads to its
// relay there is none, whatever becomes of endpoints.

// hasFlows reports whether an entry leads flows that the kernel remembers for
// longer than their connection.
func hasFlows(k Key) bool {
	return k.Kind == KindEntry && k.Proto == model.UDP && k.Chain != chainGuard
}

// staleFlows returns what ops on entries make stale, in the words of before them. What
// is to be kept is known only when relays listen.
func staleFlows(ops []ledger.Op[Key, Value], rules map[Key]installed) (fronts []flows.Match) {
	for _, op := range ops {
		switch {
		case !hasFlows(op.Key):
		case op.Verb == ledger.Delete:
			fronts = append(fronts, endedFlows(op.Key, rules[op.Key].port))
		default:
			fronts = append(fronts, flows.Match{Proto: model.UDP, Frontend: op.Key.At, Reach: flows.Everything})
		}
	}
	return fronts
}

// endedFlows returns the flows that an entry leads to where it leads now, to a
// relay's port, a reject or a drop. Others of its frontend may be another mode's,
// which serves already.
func endedFlows(k Key, port uint16) flows.Match {
	f := k.Family
	return flows.Match{
		Proto: model.UDP, Frontend: k.At,
		Gone: flows.SetOf(relayAddrPort(f, port), relayAddrPort(f, rejectPort), relayAddrPort(f, dropPort)),
	}
}

// deleteFlows deletes stale flows from conntrack, but for those to what a frontend
// keeps. It is no part of the commit: what stays ends with its client's silence.
func deleteFlows(ctx context.Context, fronts []flows.Match, keep func(frontend netip.AddrPort) flows.Set) {
	if len(fronts) == 0 {
		return
	}
	var x flows.Index
	own := ownAddresses()
	for _, m := range fronts {
		m.Own, m.Keep = own, keep(m.Frontend)
		x.Add(m)
	}
	table, err := conntrack.Open()
	if err == nil {
		defer table.Close()
		_, err = table.Delete(ctx, x.Matches())
	}
	if err != nil {
		slog.Warn("deleting stale UDP conntrack entries failed", "err", err)
	}
}

// ownAddresses are those of this host, or none where they cannot be told.
func ownAddresses() (own []netip.Addr) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().Unmap())
		}
	}
	return own
}
