// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// TopRequest is what tandem top asks. Services without connections are left out.
type TopRequest struct {
	Filter    status.Filter `json:"filter,omitzero"`
	Frontends bool          `json:"frontends,omitempty"` // with the counts of each
}

// Top is the query of tandem top.
func Top() Query[TopRequest, status.Top] {
	return Query[TopRequest, status.Top]{Name: "top", Reads: true, answer: top}
}

func top(ctx context.Context, p *Proxy, r TopRequest) (t status.Top, err error) {
	counter, ok := dataplane.As[dataplane.ConnectionCounter](p.engine.Current().Backend)
	if !ok {
		return status.Top{At: time.Now(), Mode: p.mode(), Services: []status.TopService{}, NotCounted: status.NotCounted(p.mode())}, nil
	}
	counts, at := status.TopCounts{}, time.Now()
	if err := p.network.Do(func() error { return counter.Connections(ctx, counts.Add) }); err != nil {
		return t, err
	}
	s, err := p.snapshotFor(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return t, err
	}
	return status.TopOf(p.mode(), at, counts, s.Services, r.Filter, r.Frontends), nil
}
