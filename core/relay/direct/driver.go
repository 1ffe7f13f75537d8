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
	"github.com/tandem-proxy/tandem/core/relay"
)

// Addresses are those that this program has put on an adapter. They are used by
// one goroutine at a time.
type Addresses interface {
	// Add adds an address that need not be ready at once.
	Add(netip.Addr) error
	// Remove removes an address; that it is gone is no error.
	Remove(netip.Addr) error
	// List returns the addresses that are ours, also those of an earlier run.
	List() ([]netip.Addr, error)
}

// Options are what a Driver needs.
type Options struct {
	Addresses Addresses // nil where addresses are there already

	// Elsewhere returns where else a listener may be, best first, when its place
	// is taken or not allowed. Nil is nowhere.
	Elsewhere func(netip.AddrPort) []netip.AddrPort

	// Moved is told where a listener is for people to use it, or that it is
	// gone, with the zero value. Nil is nobody.
	Moved func(Key, Value, netip.AddrPort)

	Relay relay.Options // without Origin
}

// Driver opens and closes listeners (dataplane.Driver).
type Driver struct {
	options Options
	server  *relay.Server
	host    atomic.Pointer[model.Host]

	mu        sync.RWMutex // Observe may run beside Commit; relays ask for origins
	listeners map[Key]listener
	owned     map[netip.Addr]bool
}

type listener struct {
	*relay.Relay
	value Value
}

var _ dataplane.Driver[Key, Value] = (*Driver)(nil)

// Open returns a driver without listeners. Close it after use.
func Open(o Options) *Driver {
	d := &Driver{options: o, listeners: map[Key]listener{}, owned: map[netip.Addr]bool{}}
	o.Relay.Origin = func(client netip.Addr) model.Origin { return origin(d.host.Load(), d.owns, client) }
	d.server = relay.NewServer(o.Relay)
	return d
}

func (d *Driver) owns(a netip.Addr) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.owned[a]
}

// Limits implements dataplane.Driver.
func (d *Driver) Limits() dataplane.Limits { return dataplane.Limits{} }

// grace is how long connections may go on when the proxy ends.
const grace = 3 * time.Second

// Close implements dataplane.Driver. Nothing is left, not even addresses:
// without listeners they would catch what nobody serves.
func (d *Driver) Close() error {
	err := d.server.Close(grace)
	d.mu.Lock()
	defer d.mu.Unlock()
	for a := range d.owned {
		err = errors.Join(err, d.options.Addresses.Remove(a))
	}
	clear(d.owned)
	return err
}

// Observe implements dataplane.Driver.
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
		have[Key{Kind: KindHost}] = Value{Host: h}
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
	clear(d.owned)
	for _, a := range all {
		d.owned[a] = true
		have[Key{Kind: KindAddress, At: netip.AddrPortFrom(a, 0)}] = Value{}
	}
	return have, nil
}

// Commit implements dataplane.Driver.
func (d *Driver) Commit(_ context.Context, ops []ledger.Op[Key, Value]) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		switch op.Key.Kind {
		case KindHost:
			d.host.Store(op.New.Host)
		case KindAddress:
			errs[i] = d.address(op)
		case KindListener:
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
		delete(d.owned, a)
		return nil
	}
	if err := d.options.Addresses.Add(a); err != nil {
		return err
	}
	d.owned[a] = true
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
		d.keep(op.Key, listener{})
		d.tell(op.Key, op.Old, netip.AddrPort{})
		return l.Close()
	case open:
		l.Update(*op.New.Policy)
	default:
		if l.Relay, err = d.listen(op.Key, *op.New.Policy); err != nil {
			return d.later(op.Key, err)
		}
		d.tell(op.Key, op.New, l.Addr())
	}
	l.value = op.New
	d.keep(op.Key, l)
	return nil
}

func (d *Driver) keep(k Key, l listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.Relay == nil {
		delete(d.listeners, k)
		return
	}
	d.listeners[k] = l
}

func (d *Driver) tell(k Key, v Value, at netip.AddrPort) {
	if d.options.Moved != nil {
		d.options.Moved(k, v, at)
	}
}

// listen opens a relay in its place or, where there is one, in another.
func (d *Driver) listen(k Key, p relay.Policy) (*relay.Relay, error) {
	r, err := d.server.Listen(k.Proto, k.At, p)
	if err == nil || d.options.Elsewhere == nil {
		return r, err
	}
	for _, at := range d.options.Elsewhere(k.At) {
		if r, other := d.server.Listen(k.Proto, at, p); other == nil {
			return r, nil
		}
	}
	return nil, err
}

// settling is how long an address that was added may take until it can be
// listened on.
const settling = 100 * time.Millisecond

// later asks for patience with an address that is not ready yet.
func (d *Driver) later(k Key, err error) error {
	if relay.Absent(err) && d.owns(k.At.Addr()) {
		return ledger.ErrBusy{After: settling}
	}
	return err
}
