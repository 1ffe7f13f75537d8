package dataplane

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Backend is a data plane that can be brought to a desired state. It is used by
// one goroutine.
type Backend interface {
	// Adopt reads back what is installed. It comes first, and again after an
	// error: until it succeeds nothing may be synced.
	Adopt(context.Context) error

	// Slots tells how the installed pools are ordered (resolve.Slots).
	Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort

	// SetHost sets the host that everything is compiled for, and compiles
	// everything again where it differs. It comes before the first Update.
	SetHost(*model.Host)

	// Update takes changes of the desired state: the Old of each is the New of an
	// earlier one. It does no I/O.
	Update([]model.Delta)

	// Spare says whether what was adopted and nothing asks for may belong to
	// something that could not be understood: then it stays until the doubt is
	// over. Could not read is not absent.
	Spare(doubt bool)

	// Sync applies what differs. The error is that of the first op that failed;
	// what failed is tried again at Next, the rest is done.
	Sync(context.Context) (Work, error)

	// Next is when Sync wants to be called without a change; zero for never.
	Next() time.Time

	// Disturbed reports, cheaply, whether somebody else wrote to the data
	// plane, so that an Audit is due. Data planes that cannot tell say no.
	Disturbed(context.Context) (bool, error)

	// Audit reads everything back and returns how many objects are not as the
	// last Sync left them. The next Sync repairs them. It reads the whole data
	// plane: not for the path of a change.
	Audit(context.Context) (drift int, err error)

	// Inspect begins an Audit that changes need not wait for. Objects that are
	// written meanwhile are left out. There is one at a time, and Sync does not
	// read back before its end.
	Inspect() Inspection

	// Drain waits until connections that would end with the data plane have
	// ended, and has it take no new ones: see Drainer. Most have none.
	Drain(context.Context) error

	// Remove deletes everything that is ours, and nothing else. It waits for no
	// connection.
	Remove(context.Context) error

	// Health lists what is not as desired, for people.
	Health() Health
	// Failing is the part of Health that may change with any Sync, and costs what
	// is failing.
	Failing() (ports map[model.PortID]error, left error)
	// Gaps lists what cannot be done for one port.
	Gaps(model.PortID) []model.Gap

	Close() error
}

// Work is what a Sync did.
type Work struct {
	Commits int // transactions
	Ops     int // objects created, replaced or deleted
	Failed  int // ops that failed

	// Refused is why the first batch that failed as a whole did. It was taken
	// apart, so nothing need have failed in the end.
	Refused error

	Verbs [ledger.Verbs]int // Ops by what was done
}

// Health lists what is not as desired.
type Health struct {
	Objects  int // how many objects are wanted or installed
	Gaps     map[model.PortID][]model.Gap
	Failures map[model.PortID]error // the base, and what ports share, have the zero id
	// Left is why something that nobody needs any more is still there. No port
	// waits for it.
	Left error
}

// New joins a Compiler and a Driver. It owns the driver and closes it.
func New[K comparable, V any](c Compiler[K, V], d Driver[K, V]) Backend {
	return &backend[K, V]{
		compiler: c, driver: d,
		ledger: ledger.New[K, V](c),
		ports:  map[*model.Port]struct{}{},
		gaps:   map[model.PortID][]model.Gap{},
	}
}

type backend[K comparable, V any] struct {
	compiler Compiler[K, V]
	driver   Driver[K, V]
	ledger   *ledger.Ledger[K, V]
	host     *model.Host
	ports    map[*model.Port]struct{} // all that are desired now
	gaps     map[model.PortID][]model.Gap

	// When the outcome of a commit is unknown: read back before the next.
	unknown  bool
	readAt   time.Time // not before
	readWait time.Duration
	readErr  error

	inspecting bool // an Inspect is not finished

	// What the port in work needed before and needs after the change.
	before, after []object[K, V]
}

type object[K comparable, V any] struct {
	key   K
	value V
}

func (b *backend[K, V]) Adopt(ctx context.Context) error {
	_, err := b.Audit(ctx)
	return err
}

func (b *backend[K, V]) Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort {
	if s, ok := b.compiler.(Slotter[K, V]); ok {
		return s.Slots(b.ledger.Installed, proto, at, from)
	}
	return nil
}

func (b *backend[K, V]) SetHost(host *model.Host) {
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
	b.exchange(nil)
	if old != nil && old.SamePorts(host) {
		b.shrink()
		return
	}
	for port := range b.ports {
		b.before, b.after = b.before[:0], b.after[:0]
		b.compiler.Port(old, port, b.emitBefore)
		b.compile(port)
		b.exchange(&port.ID)
	}
	b.shrink()
}

func (b *backend[K, V]) Update(deltas []model.Delta) {
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
		b.exchange(owner)
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

// exchange tells the ledger that an owner's objects were before and are after.
// Most are the same, in the same place of both lists: those it never hears of.
// The rest is wanted before anything is released, so that objects which only
// changed places are left alone as well.
func (b *backend[K, V]) exchange(owner *model.PortID) {
	for i, o := range b.after {
		if !b.stays(i) {
			b.ledger.Want(owner, o.key, o.value)
		}
	}
	for i, o := range b.before {
		if !b.stays(i) {
			b.ledger.Release(owner, o.key)
		}
	}
}

// stays reports whether before and after have the same object in a place.
func (b *backend[K, V]) stays(i int) bool {
	return i < len(b.before) && i < len(b.after) && b.before[i].key == b.after[i].key &&
		b.compiler.Equal(b.before[i].value, b.after[i].value)
}

// shrink lets go of lists that a very large port has left behind.
func (b *backend[K, V]) shrink() {
	const keep = 8192
	if cap(b.before) > keep {
		b.before = nil
	}
	if cap(b.after) > keep {
		b.after = nil
	}
}

func (b *backend[K, V]) Next() time.Time {
	if b.unknown {
		return b.readAt
	}
	return b.ledger.Next()
}

func (b *backend[K, V]) Spare(doubt bool) { b.ledger.Spare(doubt) }

func (b *backend[K, V]) Disturbed(ctx context.Context) (bool, error) {
	if s, ok := b.driver.(Sentinel); ok {
		return s.Disturbed(ctx)
	}
	return false, nil
}

func (b *backend[K, V]) Drain(ctx context.Context) error {
	if d, ok := b.driver.(Drainer); ok {
		return d.Drain(ctx)
	}
	return nil
}

func (b *backend[K, V]) Health() Health {
	h := Health{Objects: b.ledger.Len(), Gaps: maps.Clone(b.gaps)}
	h.Failures, h.Left = b.Failing()
	return h
}

func (b *backend[K, V]) Failing() (ports map[model.PortID]error, left error) {
	ports = map[model.PortID]error{}
	for _, f := range b.ledger.Failures() {
		switch {
		case f.Owner != nil:
			ports[*f.Owner] = f.Err
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
