// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"net/netip"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// maxSince bounds what is remembered: 20,000 take 3 MB. What comes later is not
// remembered until others go.
const maxSince = 20_000

// noteSince remembers what of changes in effect was not there before.
func (e *Engine) noteSince(applied []model.Delta, at time.Time) {
	for _, d := range applied {
		before, now := addressesOf(d.Old), addressesOf(d.New)
		for a := range before {
			if _, still := now[a]; !still {
				delete(e.programmed, SinceKey{d.ID(), a})
			}
		}
		for a := range now {
			if _, was := before[a]; !was && len(e.programmed) < maxSince {
				e.programmed[SinceKey{d.ID(), a}] = at
			}
		}
	}
}

// addressesOf are those of a port, which may be nil.
func addressesOf(p *model.Port) map[netip.AddrPort]struct{} {
	if p == nil {
		return nil
	}
	all := map[netip.AddrPort]struct{}{}
	for i := range p.Frontends {
		all[p.Frontends[i].At] = struct{}{}
	}
	for _, pool := range p.Pools() {
		for _, e := range pool.Endpoints {
			all[e.Addr] = struct{}{}
		}
	}
	return all
}

// Since returns what is known of one Service.
func (e *Engine) Since(ctx context.Context, of model.ServiceName) (Since, error) {
	return ask(ctx, e.inbox, func() Since {
		known := Since{}
		for _, p := range e.tracker.Service(of).Ports {
			for a := range addressesOf(p) {
				if at, ok := e.programmed[SinceKey{p.ID, a}]; ok {
					known[SinceKey{p.ID, a}] = at
				}
			}
		}
		return known
	})
}
