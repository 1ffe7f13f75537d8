// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Left is what an earlier run has left installed.
type Left struct {
	Objects      int
	ServiceCIDRs []netip.Prefix // as far as objects show them
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

	// Repaired are the ports that an audit, or an op that did not fit, found damaged and that
	// are right again: connections that began in between may have reached a wrong endpoint.
	// They are reported when the data plane is not Held, each once.
	Repaired []model.PortID
	// Gaps are the ports whose Gaps this has changed, without an Update: what could not be done
	// was tried again.
	Gaps []model.PortID
	// Rules are those of iptables, for the metrics that kube-proxy has of them.
	Rules []Rules
}

// Idle reports that nothing was done, and nothing failed.
func (w Work) Idle() bool {
	return w.Commits+w.Ops+w.Failed+w.Deferred+w.Corrected+len(w.Repaired)+len(w.Gaps) == 0 && w.BatchErr == nil && w.Held == nil
}

// Rules counts the owned rules of an iptables table and those written by a Sync.
type Rules struct {
	Table          string
	Family         model.Family
	Total, Written int
}

// Health lists objects that differ from the desired state.
type Health struct {
	Objects  int                    // how many objects are wanted or installed
	Failures map[model.PortID]error // objects of the host have the zero id
	// Shared is why an object that several ports share could not be written. Which ports work without it is not known.
	Shared error
	// Left is why an unwanted object could not be deleted. No port waits for it.
	Left error
	// Problems lists full tables, and objects without effect: see Driver.
	Problems []model.Problem
	Gaps     map[model.PortID][]model.Gap // of all ports, where AllGaps was asked as well: in a snapshot
}

// Object is one object of a data plane, for people.
type Object struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// State is how an object differs from what is wanted.
type State string

const (
	Missing    State = "missing"    // wanted, and not there
	Differs    State = "differs"    // there, and not as wanted
	Unexpected State = "unexpected" // installed with Tandem's owner mark, but not desired
)

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

// Candidates are the programs that wrote to the data plane since the audit before the one that
// found a change, where the system reports them: one of them has made it, unless
// Incomplete is set.
type Candidates struct {
	Writers    []Writer
	Incomplete bool // another may have written, too
}

// String lists the programs by name, each once; "unknown" without any.
func (c Candidates) String() string {
	var names []string
	for _, w := range c.Writers {
		if !slices.Contains(names, w.Name) {
			names = append(names, w.Name)
		}
	}
	switch {
	case len(names) == 0:
		return "unknown"
	case c.Incomplete:
		names = append(names, "perhaps others")
	}
	return strings.Join(names, ", ")
}

// Writer is a program that wrote to the data plane.
type Writer struct {
	Name string    `json:"name"` // of the thread, up to 15 bytes; chosen by the program
	PID  int       `json:"pid"`  // of the thread, as the host counts
	At   time.Time `json:"at"`
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
	Others      []string // rules of other programs that the packet may meet
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

// Connections are the new connections of a frontend; or of all those of a port, of a data
// plane that does not tell them apart.
type Connections struct {
	Proto model.Proto
	At    netip.AddrPort // of model.Frontend; the zero value with Port
	Port  model.PortID   // the zero value with At
	New   uint64

	Endpoint netip.AddrPort // the only one that they went to; the zero value for all
}

// Packets are what kube-proxy has metrics of in one mode only.
type Packets struct {
	Invalid   uint64 // packets dropped because connection tracking finds them invalid
	Localhost uint64 // the first ones of connections to node ports on 127.0.0.0/8

	Listeners      [2]int    // open ones for node ports on loopback addresses, by family
	ListenFailures [2]uint64 // attempts to open one

	Balancers map[BalancerFailure]uint64 // calls to HNS that failed
}

// BalancerFailure is a kind of call to HNS that failed. There are at most 120 of them.
type BalancerFailure struct {
	Verb   string // "create", "update" or "delete"
	Family model.Family
	Type   string // of frontend: "clusterip", "nodeport", "externalip" or "healthcheck"
	Error  string
}
