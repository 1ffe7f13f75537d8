// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/relay"
)

// NodePorts has relays listen for node ports on 127.0.0.1 and ::1, where the host is configured
// to answer there, and for nothing else.
type NodePorts struct{}

var _ Placement = NodePorts{}

func (NodePorts) Addresses(host *model.Host, proto model.Proto, f *model.Frontend) (at []netip.AddrPort, why string) {
	if l := model.FamilyOf(f.At.Addr()).Loopback(); f.Kind == model.KindNodePort && host.NodePorts.Answers(l, proto) {
		return []netip.AddrPort{netip.AddrPortFrom(l, f.At.Port())}, ""
	}
	return nil, ""
}

// Reached is true for processes of this node: only they have its loopback addresses.
func (NodePorts) Reached(o model.Origin) bool { return o == model.FromHost }

func (NodePorts) NeedsAddresses() bool { return false }

func (NodePorts) Note() string { return "" }

// ServeLoopback returns a mode whose node ports answer on loopback addresses by relays
// (KEP-6032), in addition to all others in the mode's own way. The kernel could only forward
// those packets with route_localnet, which opens services on 127.0.0.1 to neighbours
// (CVE-2020-8558), and for IPv6 not at all. Handover returns what passes their sockets to
// the next mode and the next process; it may return nil.
func ServeLoopback(m dataplane.Mode, handover func() relay.Handover) dataplane.Mode {
	open, plan := m.Open, m.Plan
	m.Open = func(ctx context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
		b, err := open(ctx, c, log)
		if err != nil {
			return nil, err
		}
		o := Options{Relay: relay.Options{TCP: relay.TimeoutsOf(c), Log: log, Handover: handover()}}
		return withNodePorts(b, NewBackend(NodePorts{}, Open(o)), log), nil
	}
	m.Plan = func(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
		return plan(c, withoutLoopback(host), ports)
	}
	return m
}

// withLoopback is two backends: the first one does not serve loopback addresses, and
// the second one serves nothing else.
type withLoopback struct {
	dataplane.Backend
	loopback dataplane.Backend
	log      *slog.Logger
	serving  bool                   // Host.NodePorts.OnLoopback
	failing  bool                   // the last Sync of loopback
	failures map[model.PortID]error // of loopback, as of the last Sync
	changed  []model.PortID         // whose failure has come, gone or become another since GapsChanged
}

var _ dataplane.GapNotifier = (*withLoopback)(nil)

// withNodePorts joins a backend with one of NodePorts, and owns both. What the second one
// cannot do is a Gap, and never a reason to hold a change of the first one back.
func withNodePorts(b, loopback dataplane.Backend, log *slog.Logger) dataplane.Backend {
	return &withLoopback{Backend: b, loopback: loopback, log: log}
}

var _ dataplane.Wrapper = (*withLoopback)(nil)

func (b *withLoopback) Unwrap() dataplane.Backend { return b.Backend }

func withoutLoopback(h *model.Host) *model.Host {
	if !h.NodePorts.OnLoopback() {
		return h
	}
	other := *h
	other.NodePorts.Loopback = [2]bool{}
	return &other
}

var _ dataplane.Backend = (*withLoopback)(nil)

func (b *withLoopback) Adopt(ctx context.Context) error {
	return errors.Join(b.Backend.Adopt(ctx), b.loopback.Adopt(ctx))
}

func (b *withLoopback) SetHost(h *model.Host) {
	b.serving = h.NodePorts.OnLoopback()
	b.Backend.SetHost(withoutLoopback(h))
	b.loopback.SetHost(h)
}

func (b *withLoopback) Update(deltas []model.Delta) {
	b.Backend.Update(deltas)
	b.loopback.Update(deltas)
}

func (b *withLoopback) Sync(ctx context.Context) (dataplane.Work, error) {
	w, err := b.Backend.Sync(ctx)
	_, other := b.loopback.Sync(ctx)
	if failed := other != nil; failed != b.failing && ctx.Err() == nil {
		if b.failing = failed; failed {
			b.log.Warn("opening node ports on loopback addresses failed in part; retrying", "err", other)
		}
	}
	if other != nil || len(b.failures) > 0 {
		b.noteFailures()
	}
	return w, err
}

// noteFailures takes the failures of the relays, and which of them are new or no more.
func (b *withLoopback) noteFailures() {
	now, _ := b.loopback.Failing()
	for id, err := range now {
		if was := b.failures[id]; was == nil || was.Error() != err.Error() {
			b.changed = append(b.changed, id)
		}
	}
	for id := range b.failures {
		if now[id] == nil {
			b.changed = append(b.changed, id)
		}
	}
	b.failures = now
}

func (b *withLoopback) GapsChanged() []model.PortID {
	changed := b.changed
	b.changed = nil
	return changed
}

func (b *withLoopback) Next() time.Time {
	next, other := b.Backend.Next(), b.loopback.Next()
	if next.IsZero() || !other.IsZero() && other.Before(next) {
		return other
	}
	return next
}

func (b *withLoopback) Gaps(id model.PortID) []model.Gap {
	gaps := b.Backend.Gaps(id)
	if !b.serving {
		return gaps
	}
	return merge(gaps, b.loopback.Gaps(id), b.failures[id])
}

// merge adds what relays cannot do on loopback addresses.
func merge(gaps, loopback []model.Gap, failing error) []model.Gap {
	const where = "node ports on loopback addresses: "
	all := gaps[:len(gaps):len(gaps)]
	for _, g := range model.OwnGaps(loopback) {
		g.Detail = where + g.Detail
		all = append(all, g)
	}
	if failing != nil {
		all = append(all, model.Gap{Detail: where + failing.Error()})
	}
	return all
}

func (b *withLoopback) Health() dataplane.Health {
	h := b.Backend.Health()
	if !b.serving {
		return h
	}
	other := b.loopback.Health()
	h.Objects += other.Objects
	gaps := make(map[model.PortID][]model.Gap, len(h.Gaps)+len(other.Gaps))
	maps.Copy(gaps, h.Gaps)
	h.Gaps = gaps
	for id := range other.Gaps {
		if all := merge(h.Gaps[id], other.Gaps[id], nil); len(all) > 0 {
			h.Gaps[id] = all
		}
	}
	for id, err := range other.Failures {
		h.Gaps[id] = merge(h.Gaps[id], nil, err)
	}
	return h
}

// at returns the backend whose objects a packet meets.
func (b *withLoopback) at(p oracle.Packet) dataplane.Backend {
	if p.Dst.Addr().IsLoopback() {
		return b.loopback
	}
	return b.Backend
}

func (b *withLoopback) Implementation(ports []*model.Port, p oracle.Packet) []dataplane.Object {
	return b.at(p).Implementation(ports, p)
}

func (b *withLoopback) Trace(ctx context.Context, ports []*model.Port, p oracle.Packet) (dataplane.Trace, error) {
	return b.at(p).Trace(ctx, ports, p)
}

func (b *withLoopback) Preview(deltas []model.Delta) []dataplane.Change {
	return append(b.Backend.Preview(deltas), b.loopback.Preview(deltas)...)
}

// Packets implements dataplane.PacketCounter: of connections to node ports on loopback
// addresses, relays see all.
func (b *withLoopback) Packets() (p dataplane.Packets) {
	if c, ok := dataplane.As[dataplane.PacketCounter](b.Backend); ok {
		p = c.Packets()
	}
	if relays, ok := dataplane.As[relay.Counter](b.loopback); ok {
		s := relays.Relays()
		p.Localhost += s.Accepted
		p.Listeners, p.ListenFailures = s.Listeners, s.ListenFailures
	}
	return p
}

func (b *withLoopback) Full() []model.Problem { return append(b.Backend.Full(), b.loopback.Full()...) }

// Drain implements dataplane.Backend. The relays close first: the next mode listens on the
// same sockets, and a drain may take minutes.
func (b *withLoopback) Drain(ctx context.Context) error {
	return errors.Join(b.loopback.Remove(ctx), b.Backend.Drain(ctx))
}

func (b *withLoopback) Remove(ctx context.Context) error {
	return errors.Join(b.loopback.Remove(ctx), b.Backend.Remove(ctx))
}

func (b *withLoopback) Close() error { return errors.Join(b.loopback.Close(), b.Backend.Close()) }
