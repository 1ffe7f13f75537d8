// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Backend is a data plane that can be brought to a desired state, as the engine and others see
// it. New makes one of a Compiler and a Driver. A mode that does more embeds that one and
// overrides methods.
//
// It is used by one goroutine, but for methods that say otherwise.
type Backend interface {
	Syncer
	Inspector
	Counters
}

// Syncer makes the data plane equal to the desired state: Adopt, SetHost, then Update and Sync
// for each change, and an Audit now and then.
type Syncer interface {
	// Adopt reads back what is installed. It comes first, and again after an
	// error: until it succeeds nothing may be synced.
	Adopt(context.Context) error
	// Left returns what Adopt has found. It is called before the first Sync, and looks at
	// every object.
	Left() Left
	// Slots returns the order of the installed pools (resolve.Slots).
	Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort
	// KeepUnknown states whether adopted objects that no port wants may belong to an
	// input that could not be read: then they are kept until all inputs are read.
	KeepUnknown(doubt bool)
	// Keeps reports whether adopted objects that no port wants are under keys that a port
	// needs: it would replace them.
	Keeps(*model.Port) bool

	// SetHost sets the host that everything is compiled for, and compiles
	// everything again where it differs. It comes before the first Update.
	SetHost(*model.Host)
	// Update takes changes of the desired state: the Old of each is the New of an
	// earlier one. It does no I/O.
	Update([]model.Delta)
	// Sync applies what differs. The error is that of the first op that failed; what
	// failed or was deferred is retried at Next; all other ops are done.
	Sync(context.Context) (Work, error)
	// Next is when Sync should be called without a change; zero for never.
	Next() time.Time

	// Limits are constant.
	Limits() Limits
	// Disturbed reports, cheaply, whether another program wrote to the data
	// plane, so that an Audit is due. Data planes that cannot know return false.
	Disturbed(context.Context) (bool, error)
	// Audit reads everything back and returns how many objects differ from the last
	// Sync; each was read twice. The next Sync repairs them. Its time grows with the
	// number of objects, and it may run on a goroutine of its own while the backend
	// is used. Only one may run: a second one fails at once, also while a driver does
	// not return from the first.
	Audit(context.Context) (drift int, err error)
	// Drifted returns what audits have found to differ since it was called last, up
	// to a limit, each as it was before the repair.
	Drifted() []Difference

	// Drain stops new connections and waits for connections that would end with the data
	// plane: see Driver. Most data planes have none.
	Drain(context.Context) error
	// Remove deletes all owned objects, and nothing else. It does not wait for
	// connections.
	Remove(context.Context) error
	Close() error
}

// Inspector answers questions about a data plane, and writes nothing to it.
type Inspector interface {
	// Health costs time proportional to what is failing or waiting.
	Health() Health
	// Gaps lists what the data plane does not support for one port, AllGaps for all ports.
	Gaps(model.PortID) []model.Gap
	AllGaps() map[model.PortID][]model.Gap
	// Implementation returns the objects that affect a packet. The ports are those of the
	// Service that it is for. It may be called by any goroutine.
	Implementation([]*model.Port, oracle.Packet) []Object
	// Trace sends a packet through the objects as they are now, read back beside all
	// changes. It may be called by any goroutine, waits for an audit that is under
	// way, and makes one due.
	Trace(context.Context, []*model.Port, oracle.Packet) (Trace, error)
	// Preview states which objects deltas would change. It may be called by any goroutine.
	Preview([]model.Delta) []Change
}

// Counters are what a data plane counts. They may be read by any goroutine in its network
// namespace, concurrently with everything else.
type Counters interface {
	// Connections passes on the new connections so far, by frontend or by endpoint of a
	// frontend, in any order; one may be passed several times, to be added up. Counts of a
	// frontend live as long as it does. It reports whether they are counted.
	Connections(ctx context.Context, endpoints bool, found func(Connections)) (counted bool, err error)
	// Packets are counted where kube-proxy has metrics of them; maybe as of a short while ago
	// if reading them is expensive. They never decrease while the backend is open. It may be
	// called also after Close.
	Packets() Packets
}

// Compiler turns desired state into the objects of one data plane: map elements, rule
// chains, virtual servers, load balancers. It is pure: equal arguments give equal
// objects, and it uses neither a clock nor the kernel. It is called by several goroutines at a
// time. SimpleCompiler has what most need not do.
//
// K names an object and V is its content. Emitting one key for several ports is
// how objects are shared: the object exists as long as anyone emits it, and all
// emitters must emit the same value. One port emits a key once. The order is free
// but should be stable: an object that is at the same position before and after a
// change is skipped. Host.Zone is policy, and not for compilers;
// Host.ServiceCIDRs are for Base alone.
type Compiler[K comparable, V any] interface {
	// Base emits the objects that do not depend on Services.
	Base(host *model.Host, emit func(K, V))
	// Port emits everything one port needs, and returns what this data plane does not
	// support for it.
	Port(host *model.Host, port *model.Port, emit func(K, V)) []model.Gap

	// The order of the objects, when two are equal, how long they are kept, and which clients they admit.
	ledger.Rules[K, V]

	// Slots returns the endpoints that the installed objects give to a frontend
	// for an origin, in the order of their slots; nil when they have none, or where objects do
	// not number a pool's endpoints. At adoption it lets pools keep the order that the kernel
	// already has.
	Slots(have func(K) (V, bool), proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort
	// ServiceCIDRs returns the ranges that an installed object is there for; none for most. At
	// a start whose source cannot say which ranges there are, those that an earlier run knew
	// stay in use.
	ServiceCIDRs(K, V) []netip.Prefix

	// Evaluate returns what a data plane with these objects, and no others, does
	// with a packet: the conformance suite proves it equal to the reference. Of the host it
	// gets what the system knows by itself: addresses and interfaces. Nil: packets cannot be
	// followed.
	Evaluate(objects map[K]V, host *model.Host) func(oracle.Packet) oracle.Outcome
	// Text spells an object's content, in the words of the system's own tools.
	Text(K, V) string
	// Opaque reports whether an object that was read back has content that Evaluate does
	// not see, because it differs from what Tandem writes.
	Opaque(K, V) bool
	// DecodeKey is the reverse of encoding the key as JSON.
	DecodeKey(text []byte) (K, error)
}

// SimpleCompiler is embedded by compilers whose objects are deleted at once, have no slots, admit no
// clients and say nothing about ranges.
type SimpleCompiler[K comparable, V any] struct{}

func (SimpleCompiler[K, V]) DeleteDelay(K) time.Duration { return 0 }

func (SimpleCompiler[K, V]) Admits(K) (guard K, clients netip.Prefix) { return guard, clients }

func (SimpleCompiler[K, V]) Slots(func(K) (V, bool), model.Proto, netip.AddrPort, model.Origin) []netip.AddrPort {
	return nil
}

func (SimpleCompiler[K, V]) ServiceCIDRs(K, V) []netip.Prefix { return nil }

func (SimpleCompiler[K, V]) Evaluate(map[K]V, *model.Host) func(oracle.Packet) oracle.Outcome {
	return nil
}

func (SimpleCompiler[K, V]) Text(_ K, v V) string { return fmt.Sprint(v) }

func (SimpleCompiler[K, V]) Opaque(K, V) bool { return false }

func (SimpleCompiler[K, V]) DecodeKey(text []byte) (k K, err error) {
	return k, json.Unmarshal(text, &k)
}

// Driver applies objects to a data plane. It makes no decisions: what to create,
// replace or delete, and in which order, is given. A Driver is used by one
// goroutine at a time, but for methods that say otherwise. SimpleDriver has what most cannot do.
type Driver[K comparable, V any] interface {
	// Observe reads back the owned objects, and passes them to found one by one: an
	// object may be passed more than once. An error means "could not read" and changes
	// nothing, whatever was passed before; it is never taken as "nothing there".
	// ErrInterrupted requests another attempt.
	//
	// Reading takes long where there is much, and changes do not wait for it: Observe
	// may run on a goroutine of its own while Commit runs on another. There is at
	// most one at a time. Its results for objects that are committed meanwhile are
	// ignored. It may miss objects next to those, and return objects that were just
	// deleted: differences from the ledger are read again (Get). It returns soon
	// after ctx has ended.
	Observe(ctx context.Context, found func(K, V)) error

	// Commit applies ops in the given order and returns one result for each:
	//
	//   - nil: it is done;
	//   - BusyError: not done, to be tried again later; a failure when it lasts
	//     (ledger.BusyLimit). From an atomic driver it means
	//     that the data plane as a whole cannot be written yet: then the Sync has
	//     failed, though none of the ops has;
	//   - ErrUnknown: the outcome is not known;
	//   - ConflictError, where Limits.Get: the ledger is wrong about the op's key;
	//   - ErrDeferred: there was no time for it. Where single ops are slow, a Commit
	//     ends after a second or two, so that changes and probes need not wait for
	//     thousands of them. At least one op is tried;
	//   - any other error: it was not done.
	Commit(context.Context, []ledger.Op[K, V]) []error

	// Limits are constant for the life of the driver.
	Limits() Limits
	Close() error

	// Get passes to found which of the keys are there now, and their content: those
	// that it does not pass are absent. It is called where Limits.Get, by any goroutine, also
	// beside Commit, between whose transactions it reads each object, and Observe.
	Get(ctx context.Context, keys []K, found func(K, V)) error
	// Disturbed reports whether another program has committed since the last Observe, where
	// that is known cheaply, without reading objects. It may be true for changes that do not
	// concern this driver.
	Disturbed(context.Context) (bool, error)
	// Problems lists full tables, of the whole data plane (model.WhyFull) or of single
	// Services, and what has no effect though it is there (model.WhyDegraded). Equal states
	// have equal texts. It is called often, from one goroutine, and costs next to nothing.
	Problems() []model.Problem
	// Others lists for people, up to a limit, the rules of other programs that packets
	// traverse besides Tandem's. They are listed, not evaluated. It is called on a thread of
	// the data plane's network, and like Observe: concurrently with everything but that.
	Others(context.Context) ([]string, error)
	// Drain stops new connections and waits until the existing ones have ended, the
	// driver's own limit has passed, or ctx ends, which is an error. It is called
	// when another data plane already serves; only deletions follow. Where connections do not
	// end with objects there is nothing to wait for.
	Drain(context.Context) error
	// Prune deletes what was created for objects to live in, such as the tables of iptables, if
	// it is empty now. It follows the removal of all objects, if there were any.
	Prune(context.Context) error
}

// SimpleDriver is embedded by drivers that can read all objects only, do not notice others'
// writes, and are never full, nor have connections or anything else in them.
type SimpleDriver[K comparable, V any] struct{}

func (SimpleDriver[K, V]) Get(context.Context, []K, func(K, V)) error { return errors.ErrUnsupported }

func (SimpleDriver[K, V]) Disturbed(context.Context) (bool, error) { return false, nil }

func (SimpleDriver[K, V]) Problems() []model.Problem { return nil }

func (SimpleDriver[K, V]) Others(context.Context) ([]string, error) { return nil, nil }

func (SimpleDriver[K, V]) Drain(context.Context) error { return nil }

func (SimpleDriver[K, V]) Prune(context.Context) error { return nil }

// Limits state how a Driver is used.
type Limits struct {
	// Atomic drivers apply all ops of a Commit or none. One that takes more than
	// the data plane can in one transaction is applied in several, in the order of
	// the ops; ops that must be applied together stay together. If one fails, those of later
	// transactions fail, too.
	Atomic bool
	// Batch is how many ops a Commit takes; 0 is no limit. After many batches it takes more (ledger.Plan). The ops of
	// one port are never split.
	Batch int
	// Read is how long a reading may take: 0 is ReadLimit. The results of a driver that
	// continues after that are ignored.
	Read time.Duration
	// Get means that single objects can be read. It makes it cheap to confirm suspects of an
	// audit, and corrects the ledger without an audit after ConflictError and ErrUnknown. Others
	// are read as a whole instead.
	Get bool
	// Certain means that Disturbed misses no write of others: while it reports none, everything
	// is as it was read and has been written since.
	Certain bool
}

// ReadLimit is how long a reading of the data plane may take unless its driver sets
// another limit.
const ReadLimit = 3 * time.Minute

// Path is how to read all that one packet may meet without reading everything: see NewAlong.
type Path[K comparable, V any] struct {
	// Lookups returns the keys by which a packet is looked up in objects, whether these are
	// there or not, of those that are Single.
	Lookups func(objects map[K]V, host *model.Host) func(oracle.Packet) []K
	// Single reports whether a key is that of an object that can be read alone.
	Single func(K) bool
	// Observe is that of the driver, but of Single objects it passes those of the keys alone,
	// and what it has read does not count for Disturbed.
	Observe func(ctx context.Context, keys []K, found func(K, V)) error
}
