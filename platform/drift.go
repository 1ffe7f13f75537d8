// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// DriftRequest is what tandem drift asks.
type DriftRequest struct {
	Service string    `json:"service,omitempty"` // only its objects; empty for all
	Look    bool      `json:"look,omitempty"`    // read the data plane back first
	Since   time.Time `json:"since,omitzero"`    // drift found later counts as found now
}

// Drift is the query of tandem drift.
func Drift() Query[DriftRequest, status.Drift] {
	return Query[DriftRequest, status.Drift]{Name: "drift", Reads: true, answer: drift}
}

// drift has the engine audit, which repairs what it finds; or asks the kernel whether
// another program has written since the last time, where that is certain.
func drift(ctx context.Context, p *Proxy, r DriftRequest) (status.Drift, error) {
	var readAt time.Time
	if r.Look {
		r.Since = time.Now()
		var err error
		if readAt, err = p.engine.Audit(ctx); err != nil {
			return status.Drift{}, err
		}
	}
	s, err := p.snapshotFor(ctx, func(t *track.Tracker) []*track.View {
		name, _ := model.ParseServiceName(r.Service) // driftOf reports an invalid name
		return t.Named(name)
	})
	if err != nil {
		return status.Drift{}, err
	}
	d, err := driftOf(s, r)
	d.Node, d.Mode = s.Host.Name, p.mode()
	if !readAt.IsZero() {
		d.ReadAt = &readAt
	}
	return d, err
}

// driftOf renders the drift of a snapshot. A Service that neither exists nor has
// drifted is an error: "no drift" would be wrong for a mistyped name.
func driftOf(s *engine.Snapshot, r DriftRequest) (status.Drift, error) {
	d := status.DriftOf(s, r.Service, r.Since)
	d.Looked = r.Look
	if r.Service == "" || len(d.Now)+len(d.Before) > 0 {
		return d, nil
	}
	name, err := model.ParseServiceName(r.Service)
	if err != nil {
		return d, err
	}
	if _, ok := status.Find(s, name); !ok {
		return d, unknownService(name)
	}
	return d, nil
}
