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

// Backend is a data plane that can be brought to a desired state. It is used by
// one goroutine, but for Audit.
type Backend interface {
	// Adopt reads back what is installed. It comes first, and again after an
	// error: until it succeeds nothing may be synced.
	Adopt(context.Context) error

	// Slots returns the order of the installed pools (resolve.Slots).
	Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort

	// SetHost sets the host that everything is compiled for, and compiles
	// everything again where it differs. It comes before the first Update.
	SetHost(*model.Host)

	// Update takes changes of the desired state: the Old of each is the New of an
	// earlier one. It does no I/O.
	Update([]model.Delta)

	// KeepUnknown says whether adopted objects that no port wants may belong to an
	// input that could not be read: then they are kept until all inputs are read.
	KeepUnknown(doubt bool)

	// Sync applies what differs. The error is that of the first op that failed; what
	// failed or was deferred is retried at Next; all other ops are done.
	Sync(context.Context) (Work, error)

	// Next is when Sync should be called without a change; zero for never.
	Next() time.Time

	// Disturbed reports, cheaply, whether another program wrote to the data
	// plane, so that an Audit is due. Data planes that cannot know return false.
	Disturbed(context.Context) (bool, error)

	// Audit reads everything back and returns how many objects differ from the last
	// Sync; each was read twice. The next Sync repairs them. Its time grows with the
	// number of objects, and it may run on a goroutine of its own while the backend
	// is used. Only one may run: a second one fails at once, also while a driver does
	// not return from the first.
	Audit(context.Context) (drift int, err error)

	// Repaired returns the ports that an audit, or an op that did not fit, found
	// damaged and that have been right again since a Sync, once: connections that
	// began in between may have reached a wrong endpoint.
	Repaired() []model.PortID

	// Drain stops new connections and waits for those that would end with the data
	// plane: see Drainer. Most data planes have none.
	Drain(context.Context) error

	// Remove deletes all owned objects, and nothing else. It does not wait for
	// connections.
	Remove(context.Context) error

	// Health lists objects that are not as desired, for people.
	Health() Health
	// Failing is the part of Health that may change with any Sync, and costs what
	// is failing.
	Failing() (ports map[model.PortID]error, left error)
	// Gaps lists what the data plane does not support for one port.
	Gaps(model.PortID) []model.Gap
	// ReadLimit is how long Adopt and Audit may take.
	ReadLimit() time.Duration
	// Full lists full tables of the data plane, as far as known without reading: see
	// Bounded.
	Full() []model.Problem

	Close() error
}

// Work is what a Sync did.
type Work struct {
	Commits int // transactions
	Ops     int // objects created, replaced or deleted
	Failed  int // ops that failed

	// Deferred is how many ops were left for the next Sync, since a slow data plane
	// is written a second or two at a time. Their ports count as failing, with
	// ledger.ErrDeferred.
	Deferred int

	// Corrected is how many objects were found to differ because an op failed.
	Corrected int

	// Refused is the error of the first batch that failed as a whole. It was split
	// and retried, so all ops may have succeeded in the end.
	Refused error

	// Held is why the data plane could not be written at all, or not completely. Then
	// the state of ports that are not failing is unknown.
	Held error

	Verbs [ledger.Verbs]int // Ops by what was done
}

// Health lists what is not as desired.
type Health struct {
	Objects  int // how many objects are wanted or installed
	Gaps     map[model.PortID][]model.Gap
	Failures map[model.PortID]error // the base, and what ports share, have the zero id
	// Left is why an unwanted object could not be deleted. No port waits for it.
	Left error
}

// New joins a Compiler and a Driver. It owns the driver and closes it.
func New[K comparable, V any](c Compiler[K, V], d Driver[K, V]) Backend {
	return newBackend(c, d, c, &sync.Mutex{})
}

func newBackend[K comparable, V any](c Compiler[K, V], d Driver[K, V], rules ledger.Rules[K, V], reading *sync.Mutex) *backend[K, V] {
	return &backend[K, V]{
		compiler: c, driver: d, reading: reading,
		ledger:    ledger.New(rules),
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

	// What the port in work needed before and needs after the change.
	before, after []object[K, V]

	mu        sync.Mutex // guards what follows: an audit compares beside everything else
	ledger    *ledger.Ledger[K, V]
	host      *model.Host
	ports     map[*model.Port]struct{}  // all that are desired now
	damaged   map[model.PortID]struct{} // ports that an audit found drifted objects of
	repairing map[model.PortID]struct{} // those that a Sync has planned the repair of
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

func (b *backend[K, V]) Disturbed(ctx context.Context) (bool, error) {
	if s, ok := b.driver.(Sentinel); ok {
		disturbed, err := s.Disturbed(ctx)
		return disturbed || b.incomplete.Load(), err
	}
	return false, nil
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
	for _, f := range b.ledger.Failures() {
		switch {
		case f.Owner != nil:
			ports[*f.Owner] = f.Err
		case errors.Is(f.Err, ledger.ErrDeferred): // ports that wait for it are listed themselves
		case f.Left:
			left = f.Err
		default:
			ports[model.PortID{}] = f.Err
		}
	}
	return ports, left
}

func (b *backend[K, V]) Gaps(id model.PortID) []model.Gap { return b.gaps[id] }

func (b *backend[K, V]) Close() error { return b.driver.Close() }
