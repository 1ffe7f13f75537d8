// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// New joins a Compiler and a Driver. It owns the driver and closes it.
func New[K comparable, V any](c Compiler[K, V], d Driver[K, V]) Backend {
	return NewAlong(c, d, Path[K, V]{})
}

// NewAlong is New where a packet can be traced along a path, which may be the zero value.
func NewAlong[K comparable, V any](c Compiler[K, V], d Driver[K, V], p Path[K, V]) Backend {
	b := newBackend(c, d, c, &sync.Mutex{})
	b.path = p
	return b
}

func newBackend[K comparable, V any](c Compiler[K, V], d Driver[K, V], rules ledger.Rules[K, V], reading *sync.Mutex) *backend[K, V] {
	l := ledger.New(rules)
	return &backend[K, V]{
		compiler: c, driver: d, reading: reading,
		ledger:    l,
		change:    newChange(rules, l),
		ports:     map[*model.Port]struct{}{},
		gaps:      map[model.PortID][]model.Gap{},
		damaged:   map[model.PortID]struct{}{},
		repairing: map[model.PortID]struct{}{},
	}
}

type backend[K comparable, V any] struct {
	compiler Compiler[K, V]
	driver   Driver[K, V]
	path     Path[K, V]
	gaps     map[model.PortID][]model.Gap
	reading  *sync.Mutex // held while the driver is in Observe, even after its deadline

	// Set when a read cleared the driver's change flag but was not fully compared:
	// earlier external changes may be unnoticed.
	incomplete atomic.Bool

	// When the outcome of a commit is unknown: read back before the next.
	unknown     bool
	unknownKeys []K       // the keys that it was about
	readAt      time.Time // not before
	readWait    time.Duration
	readErr     error

	mu        sync.Mutex // guards what follows: an audit compares concurrently with everything else
	ledger    *ledger.Ledger[K, V]
	change    *change[K, V]
	host      *model.Host
	ports     map[*model.Port]struct{}  // all that are desired now
	damaged   map[model.PortID]struct{} // ports that an audit found drifted objects of
	repairing map[model.PortID]struct{} // those that a Sync has planned the repair of
	drifted   []Difference              // found by audits and not reported yet
}

func (b *backend[K, V]) Left() (left Left) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, v := range b.ledger.AllInstalled() {
		left.Objects++
		left.ServiceCIDRs = append(left.ServiceCIDRs, b.compiler.ServiceCIDRs(k, v)...)
	}
	left.ServiceCIDRs = model.Canonical(left.ServiceCIDRs)
	return left
}

func (b *backend[K, V]) Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.compiler.Slots(b.ledger.Installed, proto, at, from)
}

func (b *backend[K, V]) Next() time.Time {
	if b.unknown {
		return b.readAt
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.Next()
}

func (b *backend[K, V]) KeepUnknown(doubt bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ledger.KeepUnknown(doubt)
}

func (b *backend[K, V]) Keeps(p *model.Port) (keeps bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.compiler.Port(b.host, p, func(k K, _ V) { keeps = keeps || b.ledger.Left(k) })
	return keeps
}

func (b *backend[K, V]) Limits() Limits {
	l := b.driver.Limits()
	l.Read = cmp.Or(l.Read, ReadLimit)
	return l
}

func (b *backend[K, V]) Disturbed(ctx context.Context) (bool, error) {
	disturbed, err := b.driver.Disturbed(ctx)
	return disturbed || b.incomplete.Load(), err
}

func (b *backend[K, V]) Drain(ctx context.Context) error { return b.driver.Drain(ctx) }

func (b *backend[K, V]) Health() Health {
	h := Health{Problems: b.driver.Problems()}
	b.mu.Lock()
	defer b.mu.Unlock()
	h.Objects = b.ledger.Len()
	b.failing(&h)
	return h
}

// failing sets what fails in h. Objects without an owner are named in their errors.
func (b *backend[K, V]) failing(h *Health) {
	h.Failures = map[model.PortID]error{}
	first := map[model.PortID]ledger.Failure[K]{}
	ofHost := sync.OnceValue(b.ofHost)
	for _, f := range b.ledger.Failures() {
		id := model.PortID{}
		if f.Owner != nil {
			id = *f.Owner
		} else {
			if errors.Is(f.Err, ledger.ErrDeferred) { // ports that wait for it are listed themselves
				continue
			}
			f.Err = fmt.Errorf("%v: %w", f.Key, f.Err)
			if f.Left {
				h.Left = f.Err
				continue
			}
			if _, is := ofHost()[f.Key]; !is {
				h.Shared = f.Err
				continue
			}
		}
		if had, ok := first[id]; !ok || b.earlier(f, had) {
			first[id], h.Failures[id] = f, f.Err
		}
	}
}

// ofHost returns the keys of the objects that do not depend on Services.
func (b *backend[K, V]) ofHost() map[K]struct{} {
	keys := map[K]struct{}{}
	b.compiler.Base(b.host, func(k K, _ V) { keys[k] = struct{}{} })
	return keys
}

// earlier reports whether a failure counts before another one of its port: what was deferred comes last, and
// else what fails first.
func (b *backend[K, V]) earlier(f, than ledger.Failure[K]) bool {
	if deferred := errors.Is(f.Err, ledger.ErrDeferred); deferred != errors.Is(than.Err, ledger.ErrDeferred) {
		return !deferred
	}
	if c := b.compiler.Rank(f.Key) - b.compiler.Rank(than.Key); c != 0 {
		return c < 0
	}
	return f.Err.Error() < than.Err.Error()
}

func (b *backend[K, V]) Gaps(id model.PortID) []model.Gap { return b.gaps[id] }

func (b *backend[K, V]) AllGaps() map[model.PortID][]model.Gap { return maps.Clone(b.gaps) }

func (b *backend[K, V]) Connections(context.Context, bool, func(Connections)) (bool, error) {
	return false, nil
}

func (b *backend[K, V]) Packets() Packets { return Packets{} }

func (b *backend[K, V]) Close() error { return b.driver.Close() }

type object[K comparable, V any] struct {
	key   K
	value V
}

func (b *backend[K, V]) SetHost(host *model.Host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.host
	b.host = host
	if old != nil && old.SameDataPlane(host) {
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

// sample is after how many of many changes it is known how many objects all will have.
const sample = 64

func (b *backend[K, V]) Update(deltas []model.Delta) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.change
	for i, d := range deltas {
		if i == sample && len(deltas) > 16*sample {
			b.ledger.Expect(len(deltas) / sample)
		}
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
