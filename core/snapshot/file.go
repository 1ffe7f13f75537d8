// SPDX-License-Identifier: Apache-2.0

// Package snapshot holds everything that is needed to inspect a running Tandem later and
// elsewhere: its configuration and inputs, what it made of them, and its history.
//
//	platform ──▶ File ──Write──▶ text ──Read──▶ File ──Replay──▶ the same plan, on any system
//	              │
//	              └──Redact──▶ names and addresses replaced, alike everywhere
//
// The text is JSON, one value a line, with a header first and an end last: a file
// that was cut short is rejected. What is zero is left out. It has no secrets: of the way to the API server only
// paths and addresses are in a configuration.
package snapshot

import (
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/status"
)

// Format is the version of the format. A reader rejects others, and fields that it
// does not know.
const Format = 1

// File is a snapshot.
type File struct {
	Header
	Services []*model.Service
	Slices   []*model.Slice
	CIDRs    []*model.ServiceCIDR
	Routes   []*model.Route
	Grants   []*model.Grant
	// Slots are the orders of pools that are not those that the inputs give by
	// themselves: they depend on the past.
	Slots []Slot
	// Ready are the Services with an endpoint that is still slowly starting.
	Ready   []Ready
	Drift   status.Drift // as known with Observed
	Status  status.Document
	Top     *status.Top // nil where connections were not counted
	History history.Document
	// Observed are the objects of the data plane that were not as Replay plans them when it
	// was read for this snapshot; all others were.
	Observed []dataplane.Difference
	Checks   []diagnosis.Check // of tandem doctor; empty unless it was asked
}

// Header is what there is one of.
type Header struct {
	Format   int           `json:"tandemSnapshot"`
	Version  string        `json:"version"` // of the tandem that made it
	System   string        `json:"system"`
	Mode     config.Mode   `json:"mode"` // in use
	At       time.Time     `json:"at"`
	Redacted bool          `json:"redacted,omitempty"`
	Config   config.Config `json:"config"`
	Node     *model.Node   `json:"node"` // null when unknown
	Machine  model.Machine `json:"machine"`
	// Others are the other nodes that have an address which a Service asks for, with these addresses.
	Others []*model.Node `json:"otherNodes,omitempty"`
	// Suspects are endpoints that had stopped answering, and since when they answer again.
	Suspects model.Suspects `json:"suspects,omitempty"`
	// Ports is the hash of the ports that the node had resolved (status.PortsHash), with its scheme: Resolve makes the
	// same of this. Where a change had arrived that was not resolved yet, it is what this tandem made of it all.
	Ports string `json:"ports,omitempty"`
	// Plan is the SHA-256 of the plan that Replay makes of this, in hexadecimal: in snapshots
	// of earlier versions, and in those that tests compare. It follows from the ports.
	Plan string `json:"plan,omitempty"`
	// ReadAt is when the data plane was read, or since when no other program has written to it;
	// zero where it was not, for the reason in ReadErr.
	ReadAt  time.Time `json:"readAt,omitzero"`
	ReadErr string    `json:"readErr,omitempty"`
}

// Slot is the order of a pool's endpoints, of a frontend and an origin.
type Slot struct {
	Proto     model.Proto
	At        netip.AddrPort
	From      model.Origin
	Endpoints []netip.AddrPort
}

// Ready is when the endpoints of a Service became ready; the zero time for those that
// always were.
type Ready struct {
	Service   model.ServiceName
	Endpoints map[netip.Addr]time.Time
}

// line is a line of the text: one of these.
type line struct {
	Service  *model.Service        `json:"service,omitempty"`
	Slice    *model.Slice          `json:"slice,omitempty"`
	CIDR     *model.ServiceCIDR    `json:"cidr,omitempty"`
	Route    *model.Route          `json:"route,omitempty"`
	Grant    *model.Grant          `json:"grant,omitempty"`
	Slot     *Slot                 `json:"slot,omitempty"`
	Ready    *Ready                `json:"ready,omitempty"`
	Drift    *status.Drift         `json:"drift,omitempty"`
	Status   *status.Document      `json:"status,omitempty"`
	Serves   *status.Service       `json:"serves,omitempty"`
	Top      *status.Top           `json:"top,omitempty"`
	History  *history.Document     `json:"history,omitempty"`
	Change   *history.Entry        `json:"change,omitempty"`
	Observed *dataplane.Difference `json:"observed,omitempty"`
	Check    *diagnosis.Check      `json:"check,omitempty"`
	End      *end                  `json:"end,omitempty"`
}

// end is the last line.
type end struct {
	Lines int `json:"lines"` // before it
}
