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
	Number  uint64 // 1 for the first since the start
	At      int64  // arrival, in nanoseconds since the epoch
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
	Number uint64
	At     int64  // its start, in nanoseconds since the epoch
	From   uint64 // the changes From <= Number < To arrived since the sync before
	To     uint64

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

// about reports whether a change belongs to a Service, or is the object of that name.
func (c *Change) about(n model.ServiceName) bool {
	return c.Namespace == n.Namespace && (c.Service == n.Name || c.Name == n.Name)
}
