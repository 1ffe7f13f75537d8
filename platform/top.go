// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/status"
)

// Top asks the proxy that runs here which Services get new connections.
func Top(ctx context.Context) (t status.Top, err error) {
	err = post(ctx, "/top", &t)
	return t, err
}

// topRoute answers Top.
func (p *Proxy) topRoute() route {
	return route{"POST /top", func(w http.ResponseWriter, r *http.Request) {
		t, err := p.top(r.Context())
		reply(w, t, err)
	}}
}

func (p *Proxy) top(ctx context.Context) (t status.Top, err error) {
	counter, ok := dataplane.As[dataplane.ConnectionCounter](p.engine.Current().Backend)
	if !ok {
		return t, fmt.Errorf("connections are not counted in mode %s: run tandem with --count-connections, which mode nftables can", p.mode())
	}
	counts, at := status.TopCounts{}, time.Now()
	if err := p.network.Do(func() error { return counter.Connections(ctx, counts.Add) }); err != nil {
		return t, err
	}
	s, err := p.Snapshot(ctx)
	if err != nil {
		return t, err
	}
	return status.TopOf(p.mode(), at, counts, s.Services), nil
}
