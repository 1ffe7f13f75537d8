// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Compiler turns desired state into the objects of one data plane: map elements, rule
// chains, virtual servers, load balancers. It is pure: equal arguments give equal
// objects, and it uses neither a clock nor the kernel. Base and Port are called by
// several goroutines at a time.
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

// Ranger is implemented by compilers whose Base depends on Host.ServiceCIDRs.
type Ranger[K comparable, V any] interface {
	// ServiceCIDRs returns the ranges that an installed object is there for; none for most. At
	// a start whose source cannot say which ranges there are, those that an earlier run knew
	// stay in use.
	ServiceCIDRs(K, V) []netip.Prefix
}

// Driver applies objects to a data plane. It makes no decisions: what to create,
// replace or delete, and in which order, is given. A Driver is used by one
// goroutine at a time, except Observe.
type Driver[K comparable, V any] interface {
	// Observe reads back the objects that we own, and passes them to found one by one: an
	// object may be passed more than once. An error means "could not read" and
	// changes nothing, whatever was passed before; it is never taken as "nothing
	// there". ErrInterrupted requests another attempt.
	//
	// Reading takes long where there is much, and changes do not wait for it: Observe
	// may run on a goroutine of its own while Commit runs on another. There is at
	// most one at a time. Its results for objects that are committed meanwhile are
	// ignored. It may miss objects next to those, and return objects that were just
	// deleted: differences from the ledger are read again (Getter). It returns soon
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
	//   - ConflictError, from a Getter only: the ledger is wrong about the op's key;
	//   - ErrDeferred: there was no time for it. Where single ops are slow, a Commit
	//     ends after a second or two, so that changes and probes need not wait for
	//     thousands of them. At least one op is tried;
	//   - any other error: it was not done.
	Commit(context.Context, []ledger.Op[K, V]) []error

	// Limits are constant for the life of the driver.
	Limits() Limits

	Close() error
}

// Limits state how ops are passed to a Driver.
type Limits struct {
	// Atomic drivers apply all ops of a Commit or none. One that takes more than
	// the data plane can in one transaction is applied in several, in the order of
	// the ops; ops that must be applied together stay together. If one fails, those of later
	// transactions fail, too.
	Atomic bool
	// Batch is how many ops a Commit takes at most; 0 is no limit. The ops of
	// one port are never split.
	Batch int
	// Read is how long a reading may take; 0 is ReadLimit.
	Read time.Duration
	// Certain means that the driver is a Sentinel that misses no write of others: while it
	// reports none, everything is as it was read and has been written since.
	Certain bool
}

// Getter is implemented by drivers that can look at single objects. It makes it cheap
// to confirm suspects of an audit, and corrects the ledger without an audit after
// ConflictError and ErrUnknown. Other drivers are read as a whole instead.
type Getter[K comparable, V any] interface {
	// Get passes to found which of the keys are there now, and their content: those
	// that it does not pass are absent. It may be called by any goroutine, also
	// beside Commit, between whose transactions it reads each object, and Observe.
	Get(ctx context.Context, keys []K, found func(K, V)) error
}

// Selective is implemented by drivers that can read all that one packet may meet without
// reading everything.
type Selective[K comparable, V any] interface {
	// ObserveSome is Observe, but of the objects that can be read one by one it passes
	// those of the keys alone. It resets no Sentinel.
	ObserveSome(ctx context.Context, keys []K, found func(K, V)) error
	// One reports whether a key is that of an object that can be read alone.
	One(K) bool
}

// Sentinel is implemented by drivers that know cheaply, without reading
// objects, whether another program wrote to the data plane.
type Sentinel interface {
	// Disturbed reports whether another program has committed since the last Observe.
	// It may be true for changes that do not concern this driver.
	Disturbed(context.Context) (bool, error)
}

// OthersLister is implemented by drivers that can list rules of other programs that
// packets traverse besides Tandem's. They are listed, not evaluated.
type OthersLister interface {
	// Others lists them for people, up to a limit. It is called on a thread of the data
	// plane's network, and like Observe: concurrently with everything but that.
	Others(context.Context) ([]string, error)
}

// Bounded is implemented by drivers whose data plane has limited room for state of
// packets or connections, such as clients with affinity, or whose objects can lose
// their effect while they are there.
type Bounded interface {
	// Full lists full tables: of the whole data plane (model.WhyFull) or of single
	// Services; and what has no effect (model.WhyDegraded). Equal states have equal
	// texts. It is called often, from one
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

// Pruner is implemented by drivers whose objects live in containers created for
// them that other programs may use, too, such as the tables of iptables.
type Pruner interface {
	// Prune deletes those containers that are empty now. It follows the removal of all
	// objects, if there were any.
	Prune(context.Context) error
}

// GapNotifier is implemented by backends whose Gaps also change without an Update: what could
// not be done is tried again.
type GapNotifier interface {
	// GapsChanged returns the ports whose Gaps a Sync has changed since the last call. It is
	// used like a Backend.
	GapsChanged() []model.PortID
}

// Wrapper is implemented by backends around another one.
type Wrapper interface{ Unwrap() Backend }

// As returns a backend as T: itself, or the one that it wraps, if either implements T.
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
	Rules(report func(table string, f model.Family, total, written int))
}

// ConnectionCounter is implemented by backends that count new connections by
// frontend.
type ConnectionCounter interface {
	// Connections passes the counts so far to found, in any order; a frontend may be
	// passed several times, to be added up. Counts of a frontend live as long as it
	// does. It may be called from any goroutine in the backend's network namespace, also
	// concurrently with everything else.
	Connections(ctx context.Context, found func(Connections)) error
}

// EndpointCounter is implemented by backends that count new connections by endpoint of a
// frontend, where that is asked for.
type EndpointCounter interface {
	// Endpoints is Connections by endpoint. It reports whether they are counted.
	Endpoints(ctx context.Context, found func(Connections)) (counted bool, err error)
}

// Connections are the new connections of a frontend; or of all those of a port, of a data
// plane that does not tell them apart.
type Connections struct {
	Proto model.Proto
	At    netip.AddrPort // of model.Frontend; the zero value with Port
	Port  model.PortID   // the zero value with At
	New   uint64

	Endpoint netip.AddrPort // the only one that they went to; the zero value for all
}

// PacketCounter is implemented by backends that count what kube-proxy has metrics of in one mode
// only.
type PacketCounter interface {
	// Packets returns the counters, maybe as of a short while ago if reading them is
	// expensive. They never decrease while the backend is open. It may be called from
	// any goroutine at any time, also after Close.
	Packets() Packets
}

// Packets are those numbers.
type Packets struct {
	Invalid   uint64 // packets dropped because connection tracking finds them invalid
	Localhost uint64 // the first ones of connections to node ports on 127.0.0.0/8

	Listeners      [2]int    // open ones for node ports on loopback addresses, by family
	ListenFailures [2]uint64 // attempts to open one

	Balancers map[BalancerFailure]uint64 // calls to HNS that failed
}

// BalancerFailure is a kind of call to HNS that failed. There are at most 90 of them.
type BalancerFailure struct {
	Verb   string // "create", "update" or "delete"
	Family model.Family
	Type   string // of frontend: "clusterip", "nodeport" or "externalip"
	Error  string
}

// Backend is a data plane that can be brought to a desired state. It is used by
// one goroutine, except Audit.
type Backend interface {
	// Adopt reads back what is installed. It comes first, and again after an
	// error: until it succeeds nothing may be synced.
	Adopt(context.Context) error

	// Left returns what Adopt has found. It is called before the first Sync, and looks at
	// every object.
	Left() Left

	// Slots returns the order of the installed pools (resolve.Slots).
	Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort

	// SetHost sets the host that everything is compiled for, and compiles
	// everything again where it differs. It comes before the first Update.
	SetHost(*model.Host)

	// Update takes changes of the desired state: the Old of each is the New of an
	// earlier one. It does no I/O.
	Update([]model.Delta)

	// KeepUnknown states whether adopted objects that no port wants may belong to an
	// input that could not be read: then they are kept until all inputs are read.
	KeepUnknown(doubt bool)

	// Keeps reports whether adopted objects that no port wants are under keys that a port
	// needs: it would replace them.
	Keeps(*model.Port) bool

	// Sync applies what differs. The error is that of the first op that failed; what
	// failed or was deferred is retried at Next; all other ops are done.
	Sync(context.Context) (Work, error)

	// Next is when Sync should be called without a change; zero for never.
	Next() time.Time

	// Disturbed reports, cheaply, whether another program wrote to the data
	// plane, so that an Audit is due. Data planes that cannot know return false.
	Disturbed(context.Context) (bool, error)

	// Untouched reports that everything was read, and that no other program has written
	// since: an Audit would find nothing. Data planes that cannot be certain return false.
	Untouched(context.Context) bool

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

	// Drifted returns what audits have found to differ since it was called last, up
	// to a limit, each as it was before the repair.
	Drifted() []Difference

	// Implementation returns the objects without which a packet would fare otherwise.
	// The ports are those of the Service that it is for. It may be called by any
	// goroutine.
	Implementation([]*model.Port, oracle.Packet) []Object

	// Trace sends a packet through the objects as they are now, read back beside all
	// changes. It may be called by any goroutine, waits for an audit that is under
	// way, and makes one due.
	Trace(context.Context, []*model.Port, oracle.Packet) (Trace, error)

	// Preview states which objects deltas would change, and changes nothing. It may be
	// called by any goroutine.
	Preview([]model.Delta) []Change

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

// Left is what an earlier run has left installed.
type Left struct {
	Objects      int
	ServiceCIDRs []netip.Prefix // as far as objects show them: see Ranger
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

	// BatchErr is the error of the first batch that failed as a whole. It was split
	// and retried, so all ops may have succeeded in the end.
	BatchErr error

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

// Object is one object of a data plane, for people.
type Object struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// State is how an object differs from what is wanted.
type State string

// Difference is one object that is not as wanted. Owner is a port that needs it;
// the zero value for shared and for unneeded objects.
type Difference struct {
	Object string
	State  State
	Wanted string // empty when Unexpected
	Found  string // empty when Missing
	Owner  model.PortID
	// Record is what an audit found, or missed, for Plan.Trace: JSON of the mode's own, which
	// only the same version reads. Empty where it can only be shown.
	Record string
}

// Trace is the fate of a packet according to the installed objects.
type Trace struct {
	Programmed oracle.Outcome // by the objects that this mode wants: it differs from policy by Gaps alone
	Installed  oracle.Outcome // by those that were read back
	// Opaque names objects that are not as written, and whose content is not
	// understood: Installed is not known then.
	Opaque []string
	// Differences are those that may concern the packet, up to a limit; the first
	// Deciding of them each change its outcome.
	Differences []Difference
	Deciding    int
	Others      []string // rules of other programs that the packet may meet: see OthersLister
	Objects     int      // read back
	Took        time.Duration
}

// Change is what a change of the desired state does to one object.
type Change struct {
	Verb   ledger.Verb  `json:"verb"`
	Object string       `json:"object"`
	Old    string       `json:"old,omitempty"` // empty for Create
	New    string       `json:"new,omitempty"` // empty for Delete
	Owner  model.PortID `json:"-"`
}

// Evaluator is implemented by compilers whose objects can be followed by a packet,
// and shown. Of the host it gets what the system knows by itself: addresses and
// interfaces.
type Evaluator[K comparable, V any] interface {
	// Evaluate returns what a data plane with these objects, and no others, does
	// with a packet: the conformance suite proves it equal to the reference.
	Evaluate(objects map[K]V, host *model.Host) func(oracle.Packet) oracle.Outcome
	// Text spells an object's content, in the words of the system's own tools.
	Text(K, V) string
	// Opaque reports whether an object that was read back has content that Evaluate
	// does not see, since it is not as we write it.
	Opaque(K, V) bool
}

// Finder is implemented by Evaluators that know by which keys a packet is looked up.
type Finder[K comparable, V any] interface {
	// Lookups returns those of objects that can be read one by one (Selective), whether
	// there are such objects or not.
	Lookups(objects map[K]V, host *model.Host) func(oracle.Packet) []K
}

// KeyDecoder is implemented by compilers whose keys need more than their JSON text.
type KeyDecoder[K comparable] interface {
	// DecodeKey is the reverse of the key's MarshalJSON.
	DecodeKey(text []byte) (K, error)
}

// ReadLimit is how long a reading of the data plane may take unless its driver sets
// another limit. The results of a driver that continues after that are ignored.
const ReadLimit = 3 * time.Minute
