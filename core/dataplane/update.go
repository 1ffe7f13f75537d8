// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/tandem-proxy/tandem/core/model"
)

func (b *backend[K, V]) SetHost(host *model.Host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.host
	b.host = host
	if old != nil && old.SameButZone(host) {
		return
	}
	b.before, b.after = b.before[:0], b.after[:0]
	if old != nil {
		b.compiler.Base(old, b.emitBefore)
	}
	b.compiler.Base(host, b.emitAfter)
	b.replaceObjects(nil)
	if old != nil && old.SamePorts(host) {
		b.shrink()
		return
	}
	for port := range b.ports {
		b.before, b.after = b.before[:0], b.after[:0]
		b.compiler.Port(old, port, b.emitBefore)
		b.compile(port)
		b.replaceObjects(&port.ID)
	}
	b.shrink()
}

func (b *backend[K, V]) Update(deltas []model.Delta) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range deltas {
		b.before, b.after = b.before[:0], b.after[:0]
		var owner *model.PortID
		if d.Old != nil {
			owner = &d.Old.ID
			delete(b.ports, d.Old)
			delete(b.gaps, d.Old.ID)
			b.compiler.Port(b.host, d.Old, b.emitBefore)
		}
		if d.New != nil {
			owner = &d.New.ID
			b.ports[d.New] = struct{}{}
			b.compile(d.New)
		}
		b.replaceObjects(owner)
	}
	b.shrink()
}

// compile adds what a port needs now to after.
func (b *backend[K, V]) compile(port *model.Port) {
	gaps := b.compiler.Port(b.host, port, b.emitAfter)
	if len(gaps) > 0 {
		b.gaps[port.ID] = gaps
	} else {
		delete(b.gaps, port.ID)
	}
}

func (b *backend[K, V]) emitBefore(k K, v V) { b.before = append(b.before, object[K, V]{k, v}) }
func (b *backend[K, V]) emitAfter(k K, v V)  { b.after = append(b.after, object[K, V]{k, v}) }

// replaceObjects changes an owner's objects in the ledger from before to after.
// Most are the same, at the same position of both lists: those are skipped.
// The rest is wanted before anything is released, so that objects which only
// moved are skipped as well.
func (b *backend[K, V]) replaceObjects(owner *model.PortID) {
	for i, o := range b.after {
		if !b.unchanged(i) {
			b.ledger.Want(owner, o.key, o.value)
		}
	}
	for i, o := range b.before {
		if !b.unchanged(i) {
			b.ledger.Release(owner, o.key)
		}
	}
}

// unchanged reports whether before and after have the same object in a place.
func (b *backend[K, V]) unchanged(i int) bool {
	return i < len(b.before) && i < len(b.after) && b.before[i].key == b.after[i].key &&
		b.compiler.Equal(b.before[i].value, b.after[i].value)
}

// shrink frees buffers that a very large port has grown.
func (b *backend[K, V]) shrink() {
	const keep = 8192
	if cap(b.before) > keep {
		b.before = nil
	}
	if cap(b.after) > keep {
		b.after = nil
	}
}

// Compile returns all objects of a desired state, the skeleton
// included, and what cannot be done.
func Compile[K comparable, V any](c Compiler[K, V], host *model.Host, ports []*model.Port) (objects map[K]V, gaps map[model.PortID][]model.Gap) {
	objects, gaps = map[K]V{}, map[model.PortID][]model.Gap{}
	emit := func(k K, v V) { objects[k] = v }
	c.Base(host, emit)
	for _, p := range ports {
		if g := c.Port(host, p, emit); len(g) > 0 {
			gaps[p.ID] = g
		}
	}
	return objects, gaps
}
