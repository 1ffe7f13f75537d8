// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"context"
	"errors"
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
	return newBackend(c, d, c, &sync.Mutex{})
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
	gaps     map[model.PortID][]model.Gap
	reading  *sync.Mutex // held while the driver is in Observe, even after its deadline

	// Set after a read that was not fully compared but has reset the Sentinel:
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
	ranger, some := b.compiler.(Ranger[K, V])
	for k, v := range b.ledger.AllInstalled() {
		left.Objects++
		if some {
			left.ServiceCIDRs = append(left.ServiceCIDRs, ranger.ServiceCIDRs(k, v)...)
		}
	}
	left.ServiceCIDRs = model.Canonical(left.ServiceCIDRs)
	return left
}

func (b *backend[K, V]) Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.compiler.(Slotter[K, V]); ok {
		return s.Slots(b.ledger.Installed, proto, at, from)
	}
	return nil
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

func (b *backend[K, V]) Disturbed(ctx context.Context) (bool, error) {
	if s, ok := b.driver.(Sentinel); ok {
		disturbed, err := s.Disturbed(ctx)
		return disturbed || b.incomplete.Load(), err
	}
	return false, nil
}

func (b *backend[K, V]) Untouched(ctx context.Context) bool {
	if !b.driver.Limits().Certain {
		return false
	}
	disturbed, err := b.Disturbed(ctx)
	return !disturbed && err == nil
}

func (b *backend[K, V]) ReadLimit() time.Duration { return cmp.Or(b.driver.Limits().Read, ReadLimit) }

func (b *backend[K, V]) Full() []model.Problem {
	if f, ok := b.driver.(Bounded); ok {
		return f.Full()
	}
	return nil
}

func (b *backend[K, V]) Drain(ctx context.Context) error {
	if d, ok := b.driver.(Drainer); ok {
		return d.Drain(ctx)
	}
	return nil
}

func (b *backend[K, V]) Health() Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := Health{Objects: b.ledger.Len(), Gaps: maps.Clone(b.gaps)}
	h.Failures, h.Left = b.failing()
	return h
}

func (b *backend[K, V]) Failing() (ports map[model.PortID]error, left error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failing()
}

func (b *backend[K, V]) failing() (ports map[model.PortID]error, left error) {
	ports = map[model.PortID]error{}
	first := map[model.PortID]ledger.Failure[K]{}
	for _, f := range b.ledger.Failures() {
		id := model.PortID{}
		switch {
		case f.Owner != nil:
			id = *f.Owner
		case errors.Is(f.Err, ledger.ErrDeferred): // ports that wait for it are listed themselves
			continue
		case f.Left:
			left = f.Err
			continue
		}
		if had, ok := first[id]; !ok || b.earlier(f, had) {
			first[id], ports[id] = f, f.Err
		}
	}
	return ports, left
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

func (b *backend[K, V]) Close() error { return b.driver.Close() }

type object[K comparable, V any] struct {
	key   K
	value V
}
