// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"hash/fnv"
	"time"
)

// Object is what an Event is about.
type Object struct{ Kind, Namespace, Name string }

// String returns "Kind namespace/name".
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Type is the type of an Event, in Kubernetes' words.
type Type string

// The types.
const (
	Normal  Type = "Normal"
	Warning Type = "Warning"
)

// Event is something that happened to an object, for people.
type Event struct {
	About  Object
	Type   Type
	Reason string // in upper camel case: stable, for machines
	Action string // the activity, likewise
	Note   string // what happened, and what to do about it

	// Everywhere means that every node would write the same Event. Then the first one
	// writes it for all.
	Everywhere bool
}

// Record is an Event to write: a new one, or a higher count of an earlier one.
type Record struct {
	Event
	Count       int // how often, so far
	First, Last time.Time
	Written     bool // an earlier Record of it was written
}

// Name is the name of the API object for a node's Event. It is the
// same for equal Events, so that neither a restart nor other nodes write them
// again.
func (e Event) Name(node string) string {
	if e.Everywhere {
		node = ""
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%q", []string{string(e.Type), e.Reason, e.Action, e.Note, node, e.About.Kind})
	const most = 253 - 17 // bytes that names may have, less the dot and the hash
	return fmt.Sprintf("%s.%016x", e.About.Name[:min(len(e.About.Name), most)], h.Sum64())
}
