// SPDX-License-Identifier: Apache-2.0

// Package flowtest is a table of tracked flows in memory, for tests.
package flowtest

import (
	"context"
	"maps"
	"net/netip"
	"sync"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
)

// Table behaves as a kernel's connection tracking does: the first packet of a
// flow decides where it goes, all others follow. It is a flows.Table and safe for
// concurrent use. The zero value is an empty table without translation.
type Table struct {
	mu     sync.Mutex
	nat    func(proto model.Proto, client, dst netip.AddrPort) netip.AddrPort
	flows  map[Conn]flows.Flow
	faults []error
	calls  [][]flows.Match
}

// Conn names a flow: what its client sends.
type Conn struct {
	Proto       model.Proto
	Client, Dst netip.AddrPort
}

var _ flows.Table = (*Table)(nil)

// Translate sets how new flows are translated from now on: nat returns the
// endpoint, or dst itself.
func (t *Table) Translate(nat func(proto model.Proto, client, dst netip.AddrPort) netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nat = nat
}

// Send sends a packet and returns where it arrives.
func (t *Table) Send(c Conn) netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f, ok := t.flows[c]; ok {
		return f.From
	}
	f := flows.Flow{Proto: c.Proto, Dst: c.Dst, From: c.Dst}
	if t.nat != nil {
		f.From = t.nat(c.Proto, c.Client, c.Dst)
	}
	if t.flows == nil {
		t.flows = map[Conn]flows.Flow{}
	}
	t.flows[c] = f
	return f.From
}

// Flows returns a copy of the table.
func (t *Table) Flows() map[Conn]flows.Flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.flows)
}

// Fail makes the next calls of Delete return these errors, one each, without
// deleting anything.
func (t *Table) Fail(faults ...error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, faults...)
}

// Asked returns what Delete was asked for so far, failed calls included.
func (t *Table) Asked() [][]flows.Match {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([][]flows.Match(nil), t.calls...)
}

func (t *Table) Delete(ctx context.Context, matches []flows.Match, stale func(flows.Flow) bool) (deleted int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, matches)
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if len(t.faults) > 0 {
		err, t.faults = t.faults[0], t.faults[1:]
		return 0, err
	}
	for c, f := range t.flows {
		if stale(f) {
			delete(t.flows, c)
			deleted++
		}
	}
	return deleted, nil
}

// IndexOf returns an index of the given matches; later ones about the same frontend
// correct earlier ones.
func IndexOf(matches []flows.Match) *flows.Index {
	x := &flows.Index{}
	for _, m := range matches {
		x.Add(m)
	}
	return x
}
