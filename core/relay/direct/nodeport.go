// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/sleep"
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
}

// withNodePorts joins a backend with one of NodePorts, and owns both. What the second one
// cannot do is a Gap, and never a reason to hold a change of the first one back.
func withNodePorts(b, loopback dataplane.Backend, log *slog.Logger) dataplane.Backend {
	return &withLoopback{Backend: b, loopback: loopback, log: log}
}

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
		w.Gaps = b.noteFailures()
	}
	return w, err
}

// noteFailures takes the failures of the relays, and returns the ports whose failure has come,
// gone or become another.
func (b *withLoopback) noteFailures() (changed []model.PortID) {
	now := b.loopback.Health().Failures
	for id, err := range now {
		if was := b.failures[id]; was == nil || was.Error() != err.Error() {
			changed = append(changed, id)
		}
	}
	for id := range b.failures {
		if now[id] == nil {
			changed = append(changed, id)
		}
	}
	b.failures = now
	return changed
}

func (b *withLoopback) Next() time.Time {
	return sleep.Earlier(b.Backend.Next(), b.loopback.Next())
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
	h, other := b.Backend.Health(), b.loopback.Health()
	if b.serving {
		h.Objects += other.Objects
	}
	h.Problems = append(h.Problems, other.Problems...)
	return h
}

func (b *withLoopback) AllGaps() map[model.PortID][]model.Gap {
	all := b.Backend.AllGaps()
	if !b.serving {
		return all
	}
	for id, gaps := range b.loopback.AllGaps() {
		if both := merge(all[id], gaps, nil); len(both) > 0 {
			all[id] = both
		}
	}
	for id, err := range b.loopback.Health().Failures {
		all[id] = merge(all[id], nil, err)
	}
	return all
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

// Packets: of connections to node ports on loopback addresses, relays see all.
func (b *withLoopback) Packets() dataplane.Packets {
	p := b.Backend.Packets()
	if relays, ok := b.loopback.(relay.Backend); ok {
		s := relays.Relays()
		p.Localhost += s.Accepted
		p.Listeners, p.ListenFailures = s.Listeners, s.ListenFailures
	}
	return p
}

// Drain implements dataplane.Backend. The relays close first: the next mode listens on the
// same sockets, and a drain may take minutes.
func (b *withLoopback) Drain(ctx context.Context) error {
	return errors.Join(b.loopback.Remove(ctx), b.Backend.Drain(ctx))
}

func (b *withLoopback) Remove(ctx context.Context) error {
	return errors.Join(b.loopback.Remove(ctx), b.Backend.Remove(ctx))
}

func (b *withLoopback) Close() error { return errors.Join(b.loopback.Close(), b.Backend.Close()) }

// LoopbackMode serves Services on loopback addresses, for developers: it works
// on any system and needs no privileges. It prints the address of each port on
// standard output.
func LoopbackMode() dataplane.Mode {
	return dataplane.Mode{
		Name: relay.Mode, OnRequest: true, Ephemeral: true,
		Probe: probeLoopback,
		Open: func(_ context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
			return NewBackend(Loopback{}, openLoopback(os.Stdout, relay.Options{TCP: relay.TimeoutsOf(c), Log: log})), nil
		},
		Plan: planLoopback,
	}
}

// openLoopback returns a driver for listeners on loopback addresses. It writes a
// table of them to out, a line for each change.
func openLoopback(out io.Writer, relays relay.Options) *Driver {
	return Open(Options{
		Fallbacks: fallbacks,
		Changed:   func(k Key, v Value, at netip.AddrPort) { io.WriteString(out, line(k, v, at)) },
		Relay:     relays,
	})
}

// fallbacks of a listener whose port is in use or privileged: 80 becomes 8080, and
// on systems with only one loopback address any free port of that.
func fallbacks(at netip.AddrPort) (others []netip.AddrPort) {
	const privileged = 1024
	if at.Port() < privileged {
		others = append(others, netip.AddrPortFrom(at.Addr(), 8000+at.Port()))
	}
	one := model.FamilyOf(at.Addr()).Loopback()
	return append(others, netip.AddrPortFrom(at.Addr(), 0), netip.AddrPortFrom(one, 0))
}

// line is a line of the table.
func line(k Key, v Value, at netip.AddrPort) string {
	where := "closed"
	if at.IsValid() {
		where = at.String()
	}
	return fmt.Sprintf("%-40s %-26s -> %s\n", printable.Text(v.Policy.Port.String()), fmt.Sprintf("%s/%s", k.Frontend, k.Proto), where)
}

func probeLoopback(ctx context.Context) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("cannot listen on loopback: %w", err)
	}
	return l.Close()
}

func planLoopback(_ *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(Loopback{}), host, ports, Table)
}

// Table lists the listeners, at the addresses they prefer.
func Table(objects map[Key]Value) string {
	var b strings.Builder
	b.WriteString("# Service port, its address -> listener\n")
	var keys []Key
	for k := range objects {
		if k.Kind == kindListener {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y Key) int {
		return strings.Compare(line(x, objects[x], x.At), line(y, objects[y], y.At))
	})
	for _, k := range keys {
		b.WriteString(line(k, objects[k], k.At))
	}
	return b.String()
}
