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

// stale returns the fronts whose UDP flows an op on entries makes stale. What is
// to be kept is known only when relays listen.
func (d *Driver) stale(ops []ledger.Op[Key, Value]) (fronts []ledger.Op[Key, Value]) {
	for _, op := range ops {
		if op.Key.Kind == KindEntry && op.Key.Proto == model.UDP && op.Key.Chain != chainGuard {
			fronts = append(fronts, op)
		}
	}
	return fronts
}

// forget deletes stale flows. It is no part of the commit: what stays ends with
// its client's silence.
func (d *Driver) forget(ctx context.Context, fronts []ledger.Op[Key, Value]) {
	if len(fronts) == 0 {
		return
	}
	var x flows.Index
	own := ownAddresses()
	for _, op := range fronts {
		m := flows.Match{Proto: model.UDP, Front: op.Key.At, Own: own, Reach: flows.Everything, Keep: d.relaysOf(op.Key)}
		if op.Verb == ledger.Delete {
			m.Reach = flows.Translated
		}
		x.Add(m)
	}
	table, err := conntrack.Open()
	if err == nil {
		defer table.Close()
		_, err = table.Delete(ctx, x.Matches())
	}
	if err != nil {
		slog.Warn("stale UDP flows were not all removed", "error", err)
	}
}

// relaysOf returns the relays that any entry of a front leads to: which of them,
// is for the origin of a flow to say.
func (d *Driver) relaysOf(k Key) flows.Set {
	keep := flows.Set{}
	for _, k.Chain = range entryChains {
		have := d.rules[k]
		if r := d.relays[have.relay]; r != nil {
			keep[r.Addr()] = struct{}{}
		}
	}
	return keep
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
