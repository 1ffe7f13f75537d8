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

// Connection tracking sends all datagrams of a flow to the target of the first one.
// When an entry's target changes, such flows are stale. A change of endpoints makes
// none stale, since the target is the relay.

// hasFlows reports whether an entry has conntrack entries that outlive its changes:
// those of UDP.
func hasFlows(k Key) bool {
	return k.Kind == kindEntry && k.Proto == model.UDP && k.Chain != chainGuard
}

// staleFlows returns the flows that ops make stale, given the rules before the ops.
// Which of them to keep is known only when relays listen.
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

// endedFlows returns the flows of an entry to its present target: a relay's port, the
// reject port or the drop port. Other flows of the frontend may belong to another
// mode that already serves it.
func endedFlows(k Key, port uint16) flows.Match {
	f := k.Family
	return flows.Match{
		Proto: model.UDP, Frontend: k.At,
		Gone: flows.SetOf(relayAddrPort(f, port), relayAddrPort(f, rejectPort), relayAddrPort(f, dropPort)),
	}
}

// deleteFlows deletes stale flows from conntrack, except those to targets in keep. A
// failure does not fail the commit: such flows end when their client pauses.
func deleteFlows(ctx context.Context, log *slog.Logger, fronts []flows.Match, keep func(frontend netip.AddrPort) flows.Set) {
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
		_, err = table.Delete(ctx, x.Matches(), x.Stale)
	}
	if err != nil {
		log.Warn("deleting stale UDP conntrack entries failed", "err", err)
	}
}

// ownAddresses are those of this host, or none if they cannot be listed.
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
