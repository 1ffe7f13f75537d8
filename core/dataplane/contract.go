// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Compiler turns desired state into the objects of one data plane: map elements, rule
// chains, virtual servers, load balancers. It is pure: equal arguments give equal
// objects, and it uses neither a clock nor the kernel. Base and Port are called by
// several goroutines at a time.
//
// K names an object and V is its content. Emitting one key for several ports is
// how objects are shared: the object lives as long as anyone emits it, and all
// who do must emit the same value. One port emits a key once. The order is free
// but should be stable: what is the same in the same place before and after a
// change costs nothing. Host.Zone is policy, and not for compilers;
// Host.ServiceCIDRs are for Base alone.
type Compiler[K comparable, V any] interface {
	// Base emits the objects that do not depend on Services.
	Base(host *model.Host, emit func(K, V))

	// Port emits everything one port needs, and returns what this data plane does not
	// support for it.
	Port(host *model.Host, port *model.Port, emit func(K, V)) []model.Gap

	// Rank is the object's place in the order of creation: lower ranks first.
	// Deletion runs backwards.
	Rank(K) int

	// DeleteDelay is how long an unwanted object is kept, in case it is needed again
	// soon. Zero for all but objects that are expensive to create.
	DeleteDelay(K) time.Duration

	// Equal reports whether two values of one key are the same to the kernel.
	Equal(a, b V) bool
}

// Slotter is implemented by compilers whose objects number a pool's endpoints.
type Slotter[K comparable, V any] interface {
	// Slots returns the endpoints that the installed objects give to a frontend
	// for an origin, in the order of their slots, or nil when they have none. At
	// adoption it lets pools keep the order that the kernel already has.
	Slots(have func(K) (V, bool), proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort
}

// Driver applies objects to a data plane. It makes no decisions: what to create,
// replace or delete, and in which order, is given. A Driver is used by one
// goroutine at a time, but for Observe.
type Driver[K comparable, V any] interface {
	// Observe reads back the objects that we own, and passes them to found one by one: an
	// object may be passed more than once. An error means "could not read" and
	// changes nothing, whatever was passed before; it is never taken as "nothing
	// there". ErrInterrupted asks for another attempt.
	//
	// Reading takes long where there is much, and changes do not wait for it: Observe
	// may run on a goroutine of its own while Commit runs on another. There is at
	// most one at a time. Its results for objects that are committed meanwhile are
	// ignored. It may miss objects next to those, and return objects that were just
	// deleted: differences from the ledger are read again (Getter). It returns soon
	// after ctx has ended.
	Observe(ctx context.Context, found func(K, V)) error

	// Commit applies ops in the given order and returns one result for each: nil
	// when done, ErrBusy to be asked again later, ErrUnknown when the outcome
	// is unknown, any other error when it was not done: ErrConflict, from a
	// Getter, when the ledger is wrong about the op's key, ErrDeferred when there was
	// no time for it: where single ops are slow, a Commit ends after a second or two,
	// so that changes and probes need not wait for thousands of them. At least one op
	// is tried. From an atomic driver
	// ErrBusy says that the data plane as a whole cannot be written yet: then the
	// Sync has failed, though none of the ops has.
	Commit(context.Context, []ledger.Op[K, V]) []error

	// Limits are constant for the life of the driver.
	Limits() Limits

	Close() error
}

// Limits say how ops are passed to a Driver.
type Limits struct {
	// Atomic drivers apply all ops of a Commit or none. One that takes more than
	// the data plane can in one transaction is applied in several, in the order of
	// the ops, but for those that it takes together only: then those of later
	// transactions than one that fails fail, too.
	Atomic bool
	// Batch is how many ops a Commit takes at most; 0 is no limit. The ops of
	// one port are never split.
	Batch int
	// Read is how long a reading may take; 0 is ReadLimit.
	Read time.Duration
}

// Getter is implemented by drivers that can look at single objects. It makes it cheap
// to confirm suspects of an audit, and corrects the ledger without an audit after
// ErrConflict and ErrUnknown. Other drivers are read as a whole instead.
type Getter[K comparable, V any] interface {
	// Get passes to found which of the keys are there now, and their content: those
	// that it does not pass are absent. It may be called by any goroutine, also
	// beside Commit, between whose transactions it reads each object, and Observe.
	Get(ctx context.Context, keys []K, found func(K, V)) error
}

// Sentinel is implemented by drivers that know cheaply, without reading
// objects, whether another program wrote to the data plane.
type Sentinel interface {
	// Disturbed reports whether another program has committed since the last Observe.
	// It may be true for changes that do not concern this driver.
	Disturbed(context.Context) (bool, error)
}

// Bounded is implemented by drivers whose data plane has limited room for state of
// packets or connections, such as clients with affinity.
type Bounded interface {
	// Full lists full tables: of the whole data plane (model.WhyFull) or of single
	// Services. Equal states have equal texts. It is called often, from one
	// goroutine, and costs next to nothing.
	Full() []model.Problem
}

// Drainer is implemented by drivers whose objects carry the connections that
// were made through them: those would end with the objects.
type Drainer interface {
	// Drain stops new connections and waits until the existing ones have ended, the
	// driver's own limit has passed, or ctx ends, which is an error. It is called
	// when another data plane already serves; only deletions follow.
	Drain(context.Context) error
}

// Wrapper is implemented by backends around another one.
type Wrapper interface{ Unwrap() Backend }

// As returns a backend as T, itself or what it is around, if that has it.
func As[T any](b Backend) (as T, ok bool) {
	for {
		if as, ok = b.(T); ok {
			return as, true
		}
		w, around := b.(Wrapper)
		if !around {
			return as, false
		}
		b = w.Unwrap()
	}
}

// RuleCounter is implemented by backends that program rules of iptables, for the
// metrics that kube-proxy has of them. It is used like a Backend.
type RuleCounter interface {
	// Rules reports for each table of each family how many of our rules it has, and
	// how many were written since the last call.
	Rules(tell func(table string, f model.Family, total, written int))
}

// PacketCounter is implemented by backends whose rules count packets, for the
// metrics that kube-proxy has of them in its iptables mode.
type PacketCounter interface {
	// Packets returns the counters, maybe as of a short while ago if reading them is
	// expensive. They never decrease while the backend is open. It may be called from
	// any goroutine at any time, also after Close.
	Packets() Packets
}

// Packets are numbers of packets.
type Packets struct {
	Invalid   uint64 // dropped because connection tracking finds them invalid
	Localhost uint64 // the first ones of connections to node ports on 127.0.0.0/8
}
