// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/status"
)

// DriftRequest is what tandem drift asks.
type DriftRequest struct {
	Service string    `json:"service,omitempty"` // only its objects; empty for all
	Look    bool      `json:"look,omitempty"`    // read the data plane back first
	Since   time.Time `json:"since,omitzero"`    // what was found later counts as found now
}

// Drift is the query of tandem drift.
func Drift() Query[DriftRequest, status.Drift] {
	return Query[DriftRequest, status.Drift]{Name: "drift", Reads: true, answer: drift}
}

// drift has the engine audit, which repairs what it finds.
func drift(ctx context.Context, p *Proxy, r DriftRequest) (status.Drift, error) {
	if r.Look {
		r.Since = time.Now()
		if err := p.engine.Audit(ctx); err != nil {
			return status.Drift{}, err
		}
	}
	s, err := p.snapshotFor(ctx)
	if err != nil {
		return status.Drift{}, err
	}
	d := status.DriftOf(s, r.Service, r.Since)
	d.Node, d.Mode, d.Looked = s.Host.Name, p.mode(), r.Look
	return d, nil
}
