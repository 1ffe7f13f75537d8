// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// maxDifferences is how many are kept of one reading, and named of one trace.
const maxDifferences = 1000

// noteDrift keeps what an audit has found to differ twice. The caller holds the lock.
func (b *backend[K, V]) noteDrift(suspects map[K]*model.PortID, have map[K]V) {
	for k, owner := range suspects {
		if len(b.drifted) == maxDifferences {
			return
		}
		v, there := have[k]
		want, owners := b.ledger.Wanted(k)
		if owners > 0 && there && b.compiler.Equal(want, v) { // a planned write, not drift
			continue
		}
		d := b.difference(k, want, owners > 0, v, there)
		if owner != nil {
			d.Owner = *owner
		}
		if !there {
			v = want
		}
		d.Record = Record(b.compiler, k, v)
		b.drifted = append(b.drifted, d.Difference)
	}
}

func (b *backend[K, V]) Drifted() (found []Difference) {
	b.mu.Lock()
	defer b.mu.Unlock()
	found, b.drifted = b.drifted, nil
	return found
}

// Preview compiles both sides of each delta. An object that other ports need too is
// not deleted.
func (b *backend[K, V]) Preview(deltas []model.Delta) (changes []Change) {
	b.mu.Lock()
	host := b.host
	b.mu.Unlock()
	if host == nil {
		return nil
	}
	old, now := map[K]V{}, map[K]V{}
	owners, releases := map[K]model.PortID{}, map[K]int{}
	for _, d := range deltas {
		if d.Old != nil {
			b.compiler.Port(host, d.Old, func(k K, v V) {
				old[k], owners[k] = v, d.ID()
				releases[k]++
			})
		}
		if d.New != nil {
			b.compiler.Port(host, d.New, func(k K, v V) { now[k], owners[k] = v, d.ID() })
		}
	}
	keys := make([]K, 0, len(owners))
	for k := range owners {
		keys = append(keys, k)
	}
	sortKeys(b.compiler, keys)
	for _, k := range keys {
		if c, ok := b.previewOne(k, old, now, releases[k]); ok {
			c.Owner = owners[k]
			changes = append(changes, c)
		}
	}
	return changes
}

// previewOne reports what becomes of one object that ports release or need.
func (b *backend[K, V]) previewOne(k K, old, now map[K]V, released int) (c Change, changes bool) {
	b.mu.Lock()
	have, holders := b.ledger.Wanted(k)
	b.mu.Unlock()
	was, had := old[k]
	v, needed := now[k]
	c.Object = fmt.Sprint(k)
	switch {
	case needed && holders == 0 && !had:
		c.Verb, c.New = ledger.Create, b.text(k, v)
	case needed && holders > 0 && !b.compiler.Equal(have, v):
		c.Verb, c.Old, c.New = ledger.Replace, b.text(k, have), b.text(k, v)
	case !needed && had && holders <= released:
		c.Verb, c.Old = ledger.Delete, b.text(k, was)
	default:
		return c, false
	}
	return c, true
}
