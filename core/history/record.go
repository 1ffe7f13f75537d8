// SPDX-License-Identifier: Apache-2.0

package history

import (
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Kind is what changed.
type Kind uint8

// The kinds of changes.
const (
	Service Kind = iota
	EndpointSlice
	Node
	ServiceCIDR
	Route         // of the Gateway API
	Grant         // likewise
	Machine       // addresses of this machine, or addresses of the API server
	Configuration // reloaded
	InitialList   // everything that the source knew when it first was complete
	Mode          // another one is in use
	Drift         // objects of the data plane were found changed by others
	kinds
)

// String returns the kind as it is shown, also in JSON.
func (k Kind) String() string {
	if k >= kinds {
		return "Unknown"
	}
	return [kinds]string{"Service", "EndpointSlice", "Node", "ServiceCIDR", "Route", "ReferenceGrant", "Machine", "Configuration", "InitialList", "Mode", "Drift"}[k]
}

// Change is one change of what the engine works with. It holds no more than its
// own names: the objects are not kept.
type Change struct {
	At      int64 // arrival, in nanoseconds since the epoch
	Kind    Kind
	Deleted bool
	Known   bool // an earlier version of the object was known

	Namespace, Name string // of the object; empty where there is none
	Service         string // that it belongs to, in Namespace; empty for none
	Version         uint64 // resourceVersion; 0 when unknown
	// Age is the time from the change in the cluster until it arrived, as far as an
	// object records it: EndpointSlices do, and Services when they are created. 0 when
	// unknown.
	Age    time.Duration
	Count  int    // objects, of kinds that are about many
	Detail string // for kinds that have one
}

// Sync describes one sync of the engine: the changes it applied together, what it rewrote, how long
// each stage took, and what failed.
type Sync struct {
	At int64 // its start, in nanoseconds since the epoch

	Stages [Stages]time.Duration
	Ports  int // Service ports that came out differently

	Created, Replaced, Deleted int // objects of the data plane
	Commits                    int // transactions
	Failed, Deferred           int // objects
	Repaired                   int // objects that others had changed
	Full                       bool
	Err                        string
}

// Stage is a part of the way of a change.
type Stage uint8

// The stages, in their order. A sync has one time for all its changes.
const (
	Queue   Stage = iota // from the arrival of the oldest change to the start of the sync
	Resolve              // what Services mean to this node
	Compile              // the objects of the data plane
	Write                // comparing and writing them
	Stages
)

// String returns the stage as metrics and JSON have it.
func (s Stage) String() string { return [Stages]string{"queue", "resolve", "compile", "write"}[s] }

// concerns reports whether a change belongs to a Service, or is the object of that name.
func (s *subject) concerns(n model.ServiceName) bool {
	return s.namespace == n.Namespace && (s.service == n.Name || s.name == n.Name)
}

// subject is what a change is about. Many changes share one.
type subject struct {
	namespace, name, service, detail string
	of                               *tally // of the namespace; nil in a key
}

// change is a Change as it is kept: 40 bytes instead of 104.
type change struct {
	at             int64
	about          *subject
	version        uint64
	age            time.Duration
	count          uint32
	kind           Kind
	deleted, known bool
}

// synced is a Sync as it is kept: 80 bytes instead of 136.
type synced struct {
	at                                         int64
	to                                         uint64 // the number of the first change that came later
	changes                                    uint32 // before that, that it applied
	ports, created, replaced, deleted, commits uint32
	resolve, compile, write                    time.Duration
	rare                                       *rare // nil for most
}

// rare is what few syncs have.
type rare struct {
	failed, deferred, repaired int
	full                       bool
	err                        string
}

// from is the number of the first change that it applied.
func (s *synced) from() uint64 { return s.to - uint64(s.changes) }

// failed reports whether something was not done.
func (s *synced) failed() bool { return s.rare != nil && (s.rare.failed > 0 || s.rare.err != "") }
