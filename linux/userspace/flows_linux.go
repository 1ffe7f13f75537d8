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

// tracked reports whether an entry leads flows that the kernel remembers for
// longer than their connection.
func tracked(k Key) bool { return k.Kind == KindEntry && k.Proto == model.UDP && k.Chain != chainGuard }

// stale returns what ops on entries make stale, in the words of before them. What
// is to be kept is known only when relays listen.
func (d *Driver) stale(ops []ledger.Op[Key, Value]) (fronts []flows.Match) {
	for _, op := range ops {
		switch {
		case !tracked(op.Key):
		case op.Verb == ledger.Delete:
			fronts = append(fronts, d.ended(op.Key))
		default:
			fronts = append(fronts, flows.Match{Proto: model.UDP, Frontend: op.Key.At, Reach: flows.Everything})
		}
	}
	return fronts
}

// ended returns the flows that an entry leads to where it leads now, to a relay
// or to an end. Others of its front may be another mode's, which serves already.
func (d *Driver) ended(k Key) flows.Match {
	f := k.Family
	return flows.Match{
		Proto: model.UDP, Frontend: k.At,
		Gone: flows.SetOf(shelterPort(f, d.rules[k].port), shelterPort(f, refusingPort), shelterPort(f, silentPort)),
	}
}

// forget deletes stale flows. It is no part of the commit: what stays ends with
// its client's silence.
func (d *Driver) forget(ctx context.Context, fronts []flows.Match) {
	if len(fronts) == 0 {
		return
	}
	var x flows.Index
	own := ownAddresses()
	for _, m := range fronts {
		m.Own, m.Keep = own, d.relaysOf(m.Frontend)
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
func (d *Driver) relaysOf(front netip.AddrPort) flows.Set {
	keep := flows.Set{}
	k := Key{Kind: KindEntry, Family: model.FamilyOf(front.Addr()), Proto: model.UDP, At: front}
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
