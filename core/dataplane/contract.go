package dataplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Compiler turns desired state into the objects of one data plane: map
// elements, rule chains, virtual servers, load balancers. It is pure: equal
// arguments give equal objects, and it knows neither a clock nor the kernel. Base
// and Port are called by several goroutines at a time.
//
// K names an object and V is its content. Emitting one key for several ports is
// how objects are shared: the object lives as long as anyone emits it, and all
// who do must emit the same value. One port emits a key once. The order is free
// but should be stable: what is the same in the same place before and after a
// change costs nothing. Host.Zone is policy, and not for compilers;
// Host.ServiceCIDRs are for Base alone.
type Compiler[K comparable, V any] interface {
	// Base emits the skeleton: what is there before any Service.
	Base(host *model.Host, emit func(K, V))

	// Port emits everything one port needs, and tells what this data plane
	// cannot do for it.
	Port(host *model.Host, port *model.Port, emit func(K, V)) []model.Gap

	// Rank is the object's place in the order of creation: lower ranks first.
	// Deletion runs backwards.
	Rank(K) int

	// Linger is how long an object that nobody needs any more stays, in case it
	// is soon needed again. Zero for all but objects that are dear to make.
	Linger(K) time.Duration

	// Equal reports whether two values of one key are the same to the kernel.
	Equal(a, b V) bool
}

// Slotter is implemented by compilers whose objects number a pool's endpoints.
type Slotter[K comparable, V any] interface {
	// Slots returns the endpoints that the installed objects give to a front
	// for an origin, in the order of their slots, or nil when they have none. At
	// adoption it lets pools keep the order that the kernel already has.
	Slots(have func(K) (V, bool), proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort
}

// Driver applies objects to a data plane. It makes no decisions: what to create,
// replace or delete, and in which order, is given. A Driver is used by one
// goroutine at a time, but for Observe.
type Driver[K comparable, V any] interface {
	// Observe reads back the objects that are ours, and tells them one by one: an
	// object may be told more than once. An error means "could not read" and
	// changes nothing, whatever was told before; it is never taken as "nothing
	// there". ErrInterrupted asks for another attempt.
	//
	// Reading takes long where there is much, and changes do not wait for it:
	// Observe may run on a goroutine of its own while Commit runs on another.
	// There is at most one at a time. What it says of objects that are committed
	// meanwhile is not used. It may miss objects beside those, and tell what was
	// there a moment ago: what differs from the books is looked at again (Getter).
	// It returns soon after ctx has ended.
	Observe(ctx context.Context, found func(K, V)) error

	// Commit applies ops in the given order and returns one result for each: nil
	// when done, ErrBusy to be asked again later, ErrUnknown when the outcome
	// cannot be told, any other error when it was not done: ErrConflict, from a
	// Getter, when the books are wrong about the op's key. From an atomic driver
	// ErrBusy says that the data plane as a whole cannot be written yet: then the
	// Sync has failed, though none of the ops has.
	Commit(context.Context, []ledger.Op[K, V]) []error

	// Limits are constant for the life of the driver.
	Limits() Limits

	Close() error
}

// Limits tell how ops are given to a Driver.
type Limits struct {
	// Atomic drivers apply all ops of a Commit or none. One that takes more than
	// the data plane can in one transaction is applied in several, in the order of
	// the ops, but for those that it takes together only: then those of later
	// transactions than one that fails fail, too.
	Atomic bool
	// Batch is how many ops a Commit takes at most; 0 is no limit. The ops of
	// one port are never split.
	Batch int
}

// Getter is implemented by drivers that can look at single objects. It makes an
// audit cheap where that has suspects, and mends the books without one after
// ErrConflict and ErrUnknown. Drivers without it are read as a whole instead.
type Getter[K comparable, V any] interface {
	// Get tells which of the keys are there now, and with what content: those
	// that it does not tell are absent. It may be called by any goroutine, also
	// beside Commit, between whose transactions it reads each object, and Observe.
	Get(ctx context.Context, keys []K, found func(K, V)) error
}

// Sentinel is implemented by drivers that can tell cheaply, without reading
// objects, whether somebody else wrote to the data plane.
type Sentinel interface {
	// Disturbed reports whether anyone but this driver has committed since the
	// last Observe. It may say yes for changes that do not concern us.
	Disturbed(context.Context) (bool, error)
}

// Filling is implemented by drivers whose data plane has limited room for what
// comes with packets or connections, such as clients.
type Filling interface {
	// Full lists what has no room: of the whole data plane (model.WhyFull) or of
	// single Services. The same is told in the same words. It is called often, from
	// one goroutine, and costs next to nothing.
	Full() []model.Problem
}

// Drainer is implemented by drivers whose objects carry the connections that
// were made through them: those would end with the objects.
type Drainer interface {
	// Drain has the data plane take no new connections and waits until those that
	// it has have ended, the driver's own limit has passed, or ctx ends, which is
	// the error. It is for a data plane beside which another one serves already;
	// nothing but deletions comes after it.
	Drain(context.Context) error
}
