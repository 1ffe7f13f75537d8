// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Op is one difference between desired and installed state.
type Op[K comparable, V any] struct {
	Verb Verb
	Key  K
	Old  V // what is installed; the zero value for Create
	New  V // what is to be; the zero value for Delete

	// Owner is the port for whose sake the object changes, nil for the base and
	// for left-overs. Ops of one owner belong together.
	Owner *model.PortID
}

// Port is the owner by value, the zero id without one. Owners are compared by
// it: an op that is retried may point to an earlier object of the same port.
func (o Op[K, V]) Port() model.PortID { return portOf(o.Owner) }

func portOf(owner *model.PortID) (id model.PortID) {
	if owner != nil {
		id = *owner
	}
	return id
}

// Verb is the kind of an Op.
type Verb uint8

// The verbs.
const (
	Create Verb = iota
	Replace
	Delete
	Verbs // how many there are
)

// String returns the verb's name.
func (v Verb) String() string { return [...]string{"create", "replace", "delete"}[v] }

// MarshalText returns the verb's name: its form in JSON.
func (v Verb) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (v *Verb) UnmarshalText(text []byte) error {
	for *v = range Verbs {
		if v.String() == string(text) {
			return nil
		}
	}
	return fmt.Errorf("unknown verb %.20q", text)
}

// ErrUnknown is the result of an op whose outcome is unknown, for instance because
// the acknowledgement was lost after the kernel may have committed. The data plane
// must be read back before anything else is written.
var ErrUnknown = errors.New("outcome unknown")

// ErrDeferred is the result of an op that was not tried, since its commit had used
// up its time. It is planned again at once.
var ErrDeferred = errors.New("not programmed yet")

// BusyError is the result of an op that cannot be done yet: another program holds the
// xtables lock, or the address of a listener is not ready. It is not a failure for BusyLimit.
type BusyError struct{ After time.Duration }

func (e BusyError) Error() string { return fmt.Sprintf("busy; retry in %s", e.After) }

// ConflictError is the result of an op that was not done because its key is not as
// the ledger says: it is there and should be created, or is not and should be
// replaced or deleted.
type ConflictError struct{ Err error }

func (e ConflictError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the data plane.
func (e ConflictError) Unwrap() error { return e.Err }

// LeftError is the result of an op that failed halfway and left neither the old nor the
// new object. What it left is recorded, and the op is retried.
type LeftError[V any] struct {
	Value V
	There bool // false: nothing is installed any more
	Err   error
}

// Error implements error.
func (e LeftError[V]) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e LeftError[V]) Unwrap() error { return e.Err }
