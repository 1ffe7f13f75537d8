package dataplane

import (
	"context"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// Backend is a data plane that can be brought to a desired state. It is used by
// one goroutine, but for Audit.
type Backend interface {
	// Adopt reads back what is installed. It comes first, and again after an
	// error: until it succeeds nothing may be synced.
	Adopt(context.Context) error

	// Slots tells how the installed pools are ordered (resolve.Slots).
	Slots(proto model.Proto, at netip.AddrPort, from model.Origin) []netip.AddrPort

	// SetHost sets the host that everything is compiled for, and compiles
	// everything again where it differs. It comes before the first Update.
	SetHost(*model.Host)

	// Update takes changes of the desired state: the Old of each is the New of an
	// earlier one. It does no I/O.
	Update([]model.Delta)

	// Spare says whether what was adopted and nothing asks for may belong to
	// something that could not be understood: then it stays until the doubt is
	// over. Could not read is not absent.
	Spare(doubt bool)

	// Sync applies what differs. The error is that of the first op that failed;
	// what failed is tried again at Next, the rest is done.
	Sync(context.Context) (Work, error)

	// Next is when Sync wants to be called without a change; zero for never.
	Next() time.Time

	// Disturbed reports, cheaply, whether somebody else wrote to the data
	// plane, so that an Audit is due. Data planes that cannot tell say no.
	Disturbed(context.Context) (bool, error)

	// Audit reads everything back and returns how many objects are not as the
	// last Sync left them: each was looked at twice. The next Sync repairs them.
	// It takes as long as there is much, and may run on a goroutine of its own
	// while the backend is used. There is one at a time; beside another, or one
	// that its driver does not return from, it fails at once.
	Audit(context.Context) (drift int, err error)

	// Repaired returns the ports that an audit, or an op that did not fit, found
	// damaged and that have been right again since a Sync, once: connections that
	// began in between may have gone astray.
	Repaired() []model.PortID

	// Drain waits until connections that would end with the data plane have
	// ended, and has it take no new ones: see Drainer. Most have none.
	Drain(context.Context) error

	// Remove deletes everything that is ours, and nothing else. It waits for no
	// connection.
	Remove(context.Context) error

	// Health lists what is not as desired, for people.
	Health() Health
	// Failing is the part of Health that may change with any Sync, and costs what
	// is failing.
	Failing() (ports map[model.PortID]error, left error)
	// Gaps lists what cannot be done for one port.
	Gaps(model.PortID) []model.Gap
	// Full lists what the data plane has no room for, as far as it is known without
	// reading: see Filling.
	Full() []model.Problem

	Close() error
}

// Work is what a Sync did.
type Work struct {
	Commits int // transactions
	Ops     int // objects created, replaced or deleted
	Failed  int // ops that failed

	// Corrected is how many objects were not as the books said, which some op's
	// failing has shown.
	Corrected int

	// Refused is why the first batch that failed as a whole did. It was taken
	// apart, so nothing need have failed in the end.
	Refused error

	// Held is why the data plane as a whole could not be written, or not to the end.
	// Then nothing is known of any port that is not failing.
	Held error

	Verbs [ledger.Verbs]int // Ops by what was done
}

// Health lists what is not as desired.
type Health struct {
	Objects  int // how many objects are wanted or installed
	Gaps     map[model.PortID][]model.Gap
	Failures map[model.PortID]error // the base, and what ports share, have the zero id
	// Left is why something that nobody needs any more is still there. No port
	// waits for it.
	Left error
}
