// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// reporter is the part of testing.T that a trial needs.
type reporter interface {
	Errorf(format string, args ...any)
	Log(args ...any)
}

// trial compares one world in a simulator with the oracle.
type trial struct {
	t       reporter
	host    *model.Host
	ports   []*model.Port
	gaps    map[model.PortID][]model.Gap
	sim     func(oracle.Packet) oracle.Outcome
	excuse  func(host *model.Host, p oracle.Packet, want, got oracle.Outcome) string // nil for none
	excused map[excused]int                                                          // packets that differ, by the gap that covers them
	judged  int
	wrong   int
}

type excused struct {
	port model.PortID
	gap  model.Gap
}

// tooMany bounds the differences of one world that are shown.
const tooMany = 10

func (s Suite[K, V]) trial(t reporter, host *model.Host, ports []*model.Port, out compiled[K, V]) *trial {
	return &trial{
		t: t, host: host, ports: ports, gaps: out.gaps,
		sim: s.Sim(out.objects, host), excuse: s.Excuse, excused: map[excused]int{},
	}
}

func (tr *trial) judge(what string, p oracle.Packet) {
	tr.judged++
	want, got := oracle.Decide(tr.host, tr.ports, p), tr.sim(p)
	sortTargets(got.Endpoints)
	diff := Diff(want, got)
	if diff == "" {
		return
	}
	if tr.excuse != nil {
		if detail := tr.excuse(tr.host, p, want, got); detail != "" {
			tr.excused[excused{gap: model.Gap{Detail: detail}}]++
			return
		}
	}
	if gap, ok := excuse(tr.gaps, p, want); ok && (!gap.Source || Diff(Masked(want), Masked(got)) == "") {
		tr.excused[excused{want.Port, gap}]++
		return
	}
	if tr.wrong++; tr.wrong <= tooMany {
		tr.t.Errorf("%s: %s (%s)", what, diff, want.Why)
	}
}

// report ends a trial and adds it to the sum.
func (tr *trial) report(what string, sum *tally) {
	sum.worlds++
	sum.packets += tr.judged
	for e, n := range tr.excused {
		sum.excuse(e.gap.Detail, n)
	}
	if tr.wrong > tooMany {
		tr.t.Errorf("%s: %d more packets differ", what, tr.wrong-tooMany)
	}
}

// list logs the gaps that were used.
func (tr *trial) list(what string) {
	var lines []string
	for e, n := range tr.excused {
		if e.port == (model.PortID{}) {
			continue // the whole mode's: it is in the sum
		}
		lines = append(lines, fmt.Sprintf("%s: gap: %s: %s: %s (%d packets differ)", what, e.port, e.gap.Frontend, e.gap.Detail, n))
	}
	slices.Sort(lines)
	for _, l := range lines {
		tr.t.Log(l)
	}
}

// Show returns a packet as one phrase.
func Show(p oracle.Packet) string {
	from := "the host"
	if p.Iface != "" {
		from = p.Iface
	}
	return fmt.Sprintf("%s (from %s) %s %s", p.Src, from, p.Proto, p.Dst)
}

// lineDiff lists lines of only one of two texts: enough to see what changed in
// a sorted rendering.
func lineDiff(want, got string) string {
	count := map[string]int{}
	for l := range strings.Lines(got) {
		count[l]++
	}
	var b strings.Builder
	for l := range strings.Lines(want) {
		if count[l]--; count[l] < 0 {
			b.WriteString("- " + l)
		}
	}
	for l := range strings.Lines(got) {
		if count[l] > 0 {
			count[l]--
			b.WriteString("+ " + l)
		}
	}
	if b.Len() == 0 {
		return "  the same lines in another order\n"
	}
	return b.String()
}

// compiled is a world in the objects of one data plane.
type compiled[K comparable, V any] struct {
	objects map[K]V // everything
	ported  map[K]V // what ports emit and the base does not
	gaps    map[model.PortID][]model.Gap
}

// compile runs a compiler over a world. The error names a key that was emitted
// with two values, which the contract of Compiler forbids.
func compile[K comparable, V any](c dataplane.Compiler[K, V], host *model.Host, ports []*model.Port) (compiled[K, V], error) {
	out := compiled[K, V]{objects: map[K]V{}, ported: map[K]V{}, gaps: map[model.PortID][]model.Gap{}}
	var err error
	put := func(who string, k K, v V) (known bool) {
		old, known := out.objects[k]
		if known && !c.Equal(old, v) && err == nil {
			err = fmt.Errorf("%s emits %v as %v, which was emitted as %v before", who, k, v, old)
		}
		out.objects[k] = v
		return known
	}
	c.Base(host, func(k K, v V) { put("the base", k, v) })
	for _, port := range ports {
		gaps := c.Port(host, port, func(k K, v V) {
			known := put(port.ID.String(), k, v)
			if _, again := out.ported[k]; again || !known {
				out.ported[k] = v
			}
		})
		if len(gaps) > 0 {
			out.gaps[port.ID] = gaps
		}
	}
	return out, err
}

// excuse returns the gap that covers a packet, if any: one for the whole port,
// for the very frontend, or, with port 0, for the ports of an address that no
// Service has claimed. A gap never covers packets to other frontends.
func excuse(gaps map[model.PortID][]model.Gap, p oracle.Packet, want oracle.Outcome) (model.Gap, bool) {
	front := p.Dst
	switch {
	case want.Why == model.WhyNotOurs:
		return model.Gap{}, false
	case want.Why == model.WhyNoSuchPort:
		front = netip.AddrPortFrom(p.Dst.Addr(), 0)
	case want.Kind == model.KindNodePort:
		front = netip.AddrPortFrom(model.FamilyOf(p.Dst.Addr()).Unspecified(), p.Dst.Port())
	}
	for _, g := range gaps[want.Port] {
		whole := g.Frontend == netip.AddrPort{} && want.Why != model.WhyNoSuchPort
		if whole || g.Frontend == front {
			return g, true
		}
	}
	return model.Gap{}, false
}

// Diff describes the difference of two outcomes of a packet; it is empty if there is
// none.
func Diff(want, got oracle.Outcome) string {
	if want.Same(got) {
		return ""
	}
	if want.Fate != got.Fate {
		return fmt.Sprintf("want %s, got %s", show(want), show(got))
	}
	var parts []string
	for _, w := range want.Endpoints {
		g, ok := find(got.Endpoints, w)
		switch {
		case !ok:
			parts = append(parts, w.Addr.String()+" is not reached")
		case w.SNAT && !g.SNAT:
			parts = append(parts, w.Addr.String()+" sees the client, not the node")
		case !w.SNAT && g.SNAT:
			parts = append(parts, w.Addr.String()+" sees the node, not the client")
		case !oracle.SameShare(w.Share, g.Share):
			parts = append(parts, fmt.Sprintf("%s gets %.1f %% of connections, not %.1f %%", w.Addr, 100*g.Share, 100*w.Share))
		}
	}
	for _, g := range got.Endpoints {
		if _, ok := find(want.Endpoints, g); !ok {
			parts = append(parts, g.Addr.String()+" must not be reached")
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "the same endpoints, but listed twice or out of order: "+show(got))
	}
	return strings.Join(parts, "; ")
}

// Masked returns the outcome of a data plane by which all endpoints see the
// host's address (model.Gap.Source).
func Masked(o oracle.Outcome) oracle.Outcome {
	o.Endpoints = slices.Clone(o.Endpoints)
	for i := range o.Endpoints {
		o.Endpoints[i].SNAT = true
	}
	return o
}

func show(o oracle.Outcome) string { return Expect{Fate: o.Fate, Endpoints: o.Endpoints}.String() }

func find(ts []oracle.Target, t oracle.Target) (oracle.Target, bool) {
	for _, x := range ts {
		if x.Addr == t.Addr {
			return x, true
		}
	}
	return oracle.Target{}, false
}
