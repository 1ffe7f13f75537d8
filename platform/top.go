// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// TopRequest is what tandem top asks. Services without connections are left out.
type TopRequest struct {
	Filter    status.Filter `json:"filter,omitzero"`
	Frontends bool          `json:"frontends,omitempty"` // with the counts of each
	Endpoints bool          `json:"endpoints,omitempty"` // with those of each endpoint
	Bytes     bool          `json:"bytes,omitempty"`     // with what conntrack has counted
}

// Top is the query of tandem top.
func Top() Query[TopRequest, status.Top] {
	return Query[TopRequest, status.Top]{Name: "top", Reads: true, answer: top}
}

func top(ctx context.Context, p *Proxy, r TopRequest) (t status.Top, err error) {
	from := status.TopSources{Mode: p.mode(), At: time.Now(), Frontends: r.Frontends}
	backend := p.engine.Current().Backend
	if err := p.network.Do(func() error {
		counts := status.TopCounts{}
		counted, err := backend.Connections(ctx, false, counts.Add)
		if err != nil {
			return err
		}
		if counted {
			from.Counts = counts
		} else if !r.Bytes {
			return nil
		}
		if r.Endpoints {
			from.Endpoints = status.TopEndpoints{}
			switch counted, err := backend.Connections(ctx, true, from.Endpoints.Add); {
			case err != nil:
				return err
			case !counted:
				return errEndpointsNotCounted
			}
		}
		if r.Bytes {
			if p.tracked == nil {
				return errBytesNotCounted
			}
			from.Flows = status.TopFlows{}
			return p.tracked.Traffic(ctx, from.Flows.Add)
		}
		return nil
	}); err != nil {
		return t, err
	}
	if from.Counts == nil && !r.Bytes {
		return status.Top{At: from.At, Mode: from.Mode, Services: []status.TopService{}, NotCounted: status.NotCounted(from.Mode)}, nil
	}
	s, err := p.snapshotFor(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return t, err
	}
	for _, a := range p.machine.now().Addresses {
		from.Node = append(from.Node, a.Prefix.Addr())
	}
	return status.TopOf(from, s.Services, r.Filter), nil
}

var errBytesNotCounted = errors.New("--bytes: this system does not count the bytes of connections by their first destination")

var errEndpointsNotCounted = errors.New("connections of endpoints are not counted: mode ipvs counts them, and mode nftables with --count-connections --count-endpoints")

// scraped are the counts of connections as metrics show them. It is safe for concurrent use.
type scraped struct {
	proxy *Proxy

	mu   sync.Mutex
	at   time.Time // of the end of the last reading
	took time.Duration
	last []metrics.ServiceConnections
}

// Reading the counts for metrics takes at most 1/scrapeShare of the time, and waits for
// other readings for scrapeWait: the counts are of the reading before then.
const (
	scrapeShare = 20
	scrapeWait  = time.Second
)

func (s *scraped) now() []metrics.ServiceConnections {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) < scrapeShare*s.took {
		return s.last
	}
	ctx, cancel := context.WithTimeout(s.proxy.running, scrapeWait)
	defer cancel()
	if s.proxy.kernel.take(ctx) != nil {
		return s.last
	}
	defer s.proxy.kernel.give()
	begun := time.Now()
	t, err := top(ctx, s.proxy, TopRequest{})
	s.at, s.took = time.Now(), time.Since(begun)
	if err != nil {
		s.proxy.log.Debug("counting connections for metrics failed", "err", err)
		return s.last
	}
	s.last = nil
	for _, x := range t.Services {
		s.last = append(s.last, metrics.ServiceConnections{Service: x.Service, New: x.New})
	}
	return s.last
}
