// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/relay"
)

// Addresses assigns addresses to an adapter. It is used by one goroutine at a time.
type Addresses interface {
	// Add assigns an address, which need not be ready at once.
	Add(netip.Addr) error
	// Remove removes an address; that it is absent is no error.
	Remove(netip.Addr) error
	// List returns the addresses that Tandem has assigned, also in an earlier run.
	List() ([]netip.Addr, error)
}

// Options are the settings of a Driver.
type Options struct {
	Addresses Addresses // nil where frontend addresses need not be assigned

	// Fallbacks returns where else a listener may be, best first, when its address
	// and port are in use or not permitted. Nil is nowhere.
	Fallbacks func(netip.AddrPort) []netip.AddrPort

	// Changed, unless nil, is called with the address of a listener, or with the zero
	// value when it is closed.
	Changed func(Key, Value, netip.AddrPort)

	Relay relay.Options // without Origin
}

// Driver opens and closes listeners (dataplane.Driver).
type Driver struct {
	dataplane.SimpleDriver[Key, Value]
	options Options
	server  *relay.Server
	host    atomic.Pointer[model.Host]

	mu        sync.RWMutex // Observe may run concurrently with Commit, and relays classify clients
	listeners map[Key]listener
	failures  [2]uint64 // to listen, by family
	assigned  map[netip.Addr]bool
}

type listener struct {
	*relay.Relay
	value Value
}

var _ dataplane.Driver[Key, Value] = (*Driver)(nil)

// Open returns a driver without listeners. Close it after use.
func Open(o Options) *Driver {
	d := &Driver{options: o, listeners: map[Key]listener{}, assigned: map[netip.Addr]bool{}}
	o.Relay.Origin = func(client netip.Addr) model.Origin { return origin(d.host.Load(), d.isAssigned, client) }
	d.server = relay.NewServer(o.Relay)
	return d
}

func (d *Driver) isAssigned(a netip.Addr) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.assigned[a]
}

// NewBackend joins a driver with the compiler for a placement. It owns the driver.
func NewBackend(p Placement, d *Driver) dataplane.Backend {
	return &backend{Backend: dataplane.New(NewCompiler(p), d), driver: d, pass: d.options.Relay.Handover}
}

// backend has the counters of its relays. After its first complete sync it closes inherited
// sockets that no relay uses.
type backend struct {
	dataplane.Backend
	driver   *Driver
	pass     relay.Handover // or nil
	released bool
}

var _ relay.Backend = (*backend)(nil)

func (b *backend) Sync(ctx context.Context) (dataplane.Work, error) {
	w, err := b.Backend.Sync(ctx)
	if err == nil && w.Failed == 0 && !b.released && b.pass != nil {
		b.released = true
		b.pass.Release()
	}
	return w, err
}

func (b *backend) Connections(_ context.Context, endpoints bool, found func(dataplane.Connections)) (counted bool, err error) {
	if endpoints {
		return false, nil
	}
	b.driver.server.Taken(func(id model.PortID, n uint64) {
		found(dataplane.Connections{Proto: id.Proto, Port: id, New: n})
	})
	return true, nil
}

func (b *backend) Watch() monitor.Source { return b.driver.server.Watch() }

func (b *backend) Attempts() *relay.Attempts { return b.driver.server.Attempts() }

func (b *backend) Relays() relay.Stats {
	s := b.driver.server.Stats()
	b.driver.mu.RLock()
	defer b.driver.mu.RUnlock()
	for k := range b.driver.listeners {
		s.Listeners[model.FamilyOf(k.At.Addr())]++
	}
	s.ListenFailures = b.driver.failures
	return s
}

func (d *Driver) Problems() []model.Problem { return d.server.Limited() }

var _ dataplane.Driver[Key, Value] = (*Driver)(nil)

func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{} }

// grace is the grace period of connections at shutdown.
const grace = 3 * time.Second

// Close implements dataplane.Driver. It removes the addresses, too, since connections
// to them would fail without listeners.
func (d *Driver) Close() error {
	err := d.server.Close(grace)
	d.mu.Lock()
	defer d.mu.Unlock()
	for a := range d.assigned {
		err = errors.Join(err, d.options.Addresses.Remove(a))
	}
	clear(d.assigned)
	return err
}

func (d *Driver) Observe(_ context.Context, found func(Key, Value)) error {
	have, err := d.observe()
	for k, v := range have {
		found(k, v)
	}
	return err
}

func (d *Driver) observe() (map[Key]Value, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	have := map[Key]Value{}
	if h := d.host.Load(); h != nil {
		have[Key{Kind: kindHost}] = Value{Host: h}
	}
	for k, l := range d.listeners {
		have[k] = l.value
	}
	if d.options.Addresses == nil {
		return have, nil
	}
	all, err := d.options.Addresses.List()
	if err != nil {
		return nil, err
	}
	clear(d.assigned)
	for _, a := range all {
		d.assigned[a] = true
		have[Key{Kind: kindAddress, At: netip.AddrPortFrom(a, 0)}] = Value{}
	}
	return have, nil
}

func (d *Driver) Commit(_ context.Context, ops []ledger.Op[Key, Value]) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		switch op.Key.Kind {
		case kindHost:
			d.host.Store(op.New.Host)
		case kindAddress:
			errs[i] = d.address(op)
		case kindListener:
			errs[i] = d.listener(op)
		}
	}
	return errs
}

func (d *Driver) address(op ledger.Op[Key, Value]) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := op.Key.At.Addr()
	if op.Verb == ledger.Delete {
		if err := d.options.Addresses.Remove(a); err != nil {
			return err
		}
		delete(d.assigned, a)
		return nil
	}
	if err := d.options.Addresses.Add(a); err != nil {
		return err
	}
	d.assigned[a] = true
	return nil
}

func (d *Driver) listener(op ledger.Op[Key, Value]) error {
	d.mu.Lock()
	l, open := d.listeners[op.Key]
	d.mu.Unlock()
	var err error
	switch {
	case op.Verb == ledger.Delete:
		if !open {
			return nil
		}
		d.set(op.Key, listener{})
		d.changed(op.Key, op.Old, netip.AddrPort{})
		l.Forget()
		return l.Close()
	case open:
		l.Update(*op.New.Policy)
	default:
		if l.Relay, err = d.listen(op.Key, *op.New.Policy); err != nil {
			d.mu.Lock()
			d.failures[model.FamilyOf(op.Key.At.Addr())]++
			d.mu.Unlock()
			return d.busyOr(op.Key, err)
		}
		d.changed(op.Key, op.New, l.Addr())
	}
	l.value = op.New
	d.set(op.Key, l)
	return nil
}

func (d *Driver) set(k Key, l listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.Relay == nil {
		delete(d.listeners, k)
		return
	}
	d.listeners[k] = l
}

func (d *Driver) changed(k Key, v Value, at netip.AddrPort) {
	if d.options.Changed != nil {
		d.options.Changed(k, v, at)
	}
}

// listen opens a relay at its address or at a fallback.
func (d *Driver) listen(k Key, p relay.Policy) (*relay.Relay, error) {
	r, err := d.server.Listen(k.Proto, k.At, p)
	if err == nil || d.options.Fallbacks == nil {
		return r, err
	}
	for _, at := range d.options.Fallbacks(k.At) {
		if r, other := d.server.Listen(k.Proto, at, p); other == nil {
			return r, nil
		}
	}
	return nil, err
}

// addressRetry is the time between attempts to listen on an address that was
// assigned and is not ready yet.
const addressRetry = 100 * time.Millisecond

// busyOr returns the error, or BusyError for an address that is not ready yet.
func (d *Driver) busyOr(k Key, err error) error {
	if relay.Absent(err) && d.isAssigned(k.At.Addr()) {
		return ledger.BusyError{After: addressRetry}
	}
	return err
}
