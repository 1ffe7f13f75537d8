// SPDX-License-Identifier: Apache-2.0

package question

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// Drift states which objects others have changed. Its JSON form is stable.
type Drift struct {
	Node string    `json:"node" nodes:"own"`
	Mode string    `json:"mode"`
	At   time.Time `json:"at" nodes:"-"`
	// Looked means that the data plane was read back for this answer, or at ReadAt: then it
	// is certain that no other program has written since.
	Looked bool       `json:"looked"`
	ReadAt *time.Time `json:"readAt,omitempty" nodes:"-"`
	// Service is the only one that it is about; absent for all.
	Service string `json:"service,omitempty"`

	Now    []Drifted `json:"now"`              // found by this look, or not repaired yet
	Before []Drifted `json:"before" nodes:"-"` // repaired, the latest first
	Total  uint64    `json:"total" nodes:"-"`  // objects since the start
	Errors []string  `json:"errors,omitempty"` // why drift is not repaired
}

// Drifted is one object that was changed.
type Drifted struct {
	Difference
	FoundAt    time.Time          `json:"foundAt" nodes:"-"`
	RepairedAt *time.Time         `json:"repairedAt,omitempty" nodes:"-"`
	By         []dataplane.Writer `json:"by,omitempty" nodes:"-"` // one of these did it, unless:
	Incomplete bool               `json:"byIncomplete,omitempty"` // another may have written, too
}

// DriftOf renders the drift in a snapshot, of one Service if it is named. What
// was found after since is reported as found now.
func DriftOf(s *engine.Snapshot, service string, since time.Time) Drift {
	d := Drift{At: time.Now(), Service: service, Now: []Drifted{}, Before: []Drifted{}, Total: s.Status.Drift}
	for _, one := range slices.Backward(s.Drifts) {
		x := drifted(one)
		switch {
		case service != "" && x.Service != service:
		case x.RepairedAt == nil || !since.IsZero() && one.Found.After(since):
			d.Now = append(d.Now, x)
			if err := s.Backend.Failures[one.Owner]; err != nil && x.RepairedAt == nil && !slices.Contains(d.Errors, err.Error()) {
				d.Errors = append(d.Errors, err.Error())
			}
		default:
			d.Before = append(d.Before, x)
		}
	}
	return d
}

func drifted(d engine.Drift) Drifted {
	x := Drifted{Difference: differenceOf(d.Difference), FoundAt: d.Found}
	if !d.Repaired.IsZero() {
		x.RepairedAt = &d.Repaired
	}
	x.By, x.Incomplete = d.By.Writers, d.By.Incomplete && len(d.By.Writers) > 0
	return x
}

// Repaired reports whether nothing is left to repair.
func (d Drift) Repaired() bool {
	return !slices.ContainsFunc(d.Now, func(x Drifted) bool { return x.RepairedAt == nil })
}

// DriftRequest is what tandem drift asks.
type DriftRequest struct {
	Service string    `json:"service,omitempty"` // only its objects; empty for all
	Look    bool      `json:"look,omitempty"`    // read the data plane back first
	Since   time.Time `json:"since,omitzero"`    // drift found later counts as found now
}

// FindDrift is the question of tandem drift. A running proxy audits for it, which repairs what is found; or asks the
// kernel whether another program has written since the last time, where that is certain.
func FindDrift() Verb[DriftRequest, Drift] {
	return Verb[DriftRequest, Drift]{Name: "drift", Kernel: true, Answer: drift, Needs: func(r DriftRequest) Needs {
		name, _ := model.ParseServiceName(r.Service) // drift reports an invalid name
		return Needs{Audit: r.Look, Services: func(t *track.Tracker) []*track.View { return t.Named(name) }}
	}}
}

// drift renders the drift of a document. A Service that neither exists nor has drifted is an error: "no drift"
// would be wrong for a mistyped name.
func drift(_ context.Context, d *Document, r DriftRequest) (out Drift, err error) {
	if d.Recorded != nil {
		out = d.Recorded.Drift.of(r.Service)
	} else {
		out = d.drift(r)
	}
	if r.Service == "" || len(out.Now)+len(out.Before) > 0 {
		return out, nil
	}
	name, err := model.ParseServiceName(r.Service)
	if err != nil {
		return out, err
	}
	if _, ok := Find(d.Snapshot, name); !ok {
		return out, unknownService(name)
	}
	return out, nil
}

// drift is that of a running proxy.
func (d *Document) drift(r DriftRequest) Drift {
	if r.Look {
		r.Since = d.Begun
	}
	out := DriftOf(d.Snapshot, r.Service, r.Since)
	out.Node, out.Mode, out.Looked = d.Facts.Node, d.Facts.Mode, r.Look
	if r.Look && !d.ReadAt.IsZero() {
		out.ReadAt = &d.ReadAt
	}
	return out
}

// of is the drift of one Service if it is named.
func (d Drift) of(service string) Drift {
	if service != "" {
		other := func(x Drifted) bool { return x.Service != service }
		d.Service, d.Now, d.Before = service, slices.DeleteFunc(slices.Clone(d.Now), other), slices.DeleteFunc(slices.Clone(d.Before), other)
	}
	return d
}
