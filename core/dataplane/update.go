// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/tandem-proxy/tandem/core/ledger"
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
	c := b.change
	c.begin(nil)
	if old != nil {
		b.compiler.Base(old, c.before)
	}
	b.compiler.Base(host, c.after)
	c.end()
	if old != nil && old.SamePorts(host) {
		return
	}
	for port := range b.ports {
		c.begin(&port.ID)
		b.compiler.Port(old, port, c.before)
		b.compile(port)
		c.end()
	}
}

func (b *backend[K, V]) Update(deltas []model.Delta) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.change
	for _, d := range deltas {
		if d.Old != nil {
			delete(b.ports, d.Old)
			delete(b.gaps, d.Old.ID)
		}
		if d.New == nil {
			c.begin(&d.Old.ID)
			b.compiler.Port(b.host, d.Old, c.gone)
			continue
		}
		c.begin(&d.New.ID)
		if d.Old != nil {
			b.compiler.Port(b.host, d.Old, c.before)
		}
		b.ports[d.New] = struct{}{}
		b.compile(d.New)
		c.end()
	}
}

// compile has what a port needs now follow what it needed before.
func (b *backend[K, V]) compile(port *model.Port) {
	gaps := b.compiler.Port(b.host, port, b.change.after)
	if len(gaps) > 0 {
		b.gaps[port.ID] = gaps
	} else {
		delete(b.gaps, port.ID)
	}
}

// change replaces an owner's objects in the ledger. Those from before are emitted
// first, if there are any, then those that it needs now. Most are the same, at the same
// position of both: those are skipped. The rest is wanted before anything is released, so
// that objects which only moved are skipped as well.
type change[K comparable, V any] struct {
	rules  ledger.Rules[K, V]
	ledger *ledger.Ledger[K, V]
	owner  *model.PortID
	old    []oldObject[K, V]
	place  int // of the next object

	// The functions that compilers emit to: objects from before, objects that are
	// needed now, and objects of an owner that is gone.
	before, after, gone func(K, V)
}

type oldObject[K comparable, V any] struct {
	key   K
	value V
	kept  bool
}

func newChange[K comparable, V any](rules ledger.Rules[K, V], l *ledger.Ledger[K, V]) *change[K, V] {
	c := &change[K, V]{rules: rules, ledger: l}
	c.before, c.after = c.addOld, c.addNew
	c.gone = func(k K, _ V) { l.Release(c.owner, k) }
	return c
}

func (c *change[K, V]) begin(owner *model.PortID) { c.owner, c.old, c.place = owner, c.old[:0], 0 }

func (c *change[K, V]) addOld(k K, v V) { c.old = append(c.old, oldObject[K, V]{key: k, value: v}) }

func (c *change[K, V]) addNew(k K, v V) {
	i := c.place
	c.place++
	if i < len(c.old) && c.old[i].key == k && c.rules.Equal(c.old[i].value, v) {
		c.old[i].kept = true
		return
	}
	c.ledger.Want(c.owner, k, v)
}

// end releases what is not needed any more, and a buffer that a very large port has
// grown.
func (c *change[K, V]) end() {
	for i := range c.old {
		if !c.old[i].kept {
			c.ledger.Release(c.owner, c.old[i].key)
		}
	}
	if cap(c.old) > 8192 {
		c.old = nil
	}
}

// objectsOfPort is how many objects a port has at least, of most.
const objectsOfPort = 4

// Compile returns all objects of a desired state, the skeleton
// included, and what cannot be done.
func Compile[K comparable, V any](c Compiler[K, V], host *model.Host, ports []*model.Port) (objects map[K]V, gaps map[model.PortID][]model.Gap) {
	objects, gaps = make(map[K]V, objectsOfPort*len(ports)), map[model.PortID][]model.Gap{}
	emit := func(k K, v V) { objects[k] = v }
	c.Base(host, emit)
	for _, p := range ports {
		if g := c.Port(host, p, emit); len(g) > 0 {
			gaps[p.ID] = g
		}
	}
	return objects, gaps
}
