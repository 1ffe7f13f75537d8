// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// schedule returns the scheduler of a port, and makes the tables of its pools if it
// is to choose by them. A pool of one endpoint needs none.
func (r *Result) schedule(svc *model.Service, p pools) model.Scheduler {
	if svc.Choice.Scheduler != model.Maglev {
		return svc.Choice.Scheduler
	}
	var several []*model.Pool
	for _, pool := range []*model.Pool{p.cluster, p.local} {
		if pool != nil && len(pool.Endpoints) > 1 && !slices.Contains(several, pool) {
			several = append(several, pool)
		}
	}
	if why := r.noTables(several); why != "" {
		r.Problem(svc, model.WhyTooLarge, "%s: chosen at random", why)
		return model.DefaultScheduler
	}
	for _, pool := range several {
		if like := r.hashedLike(pool); like != nil {
			pool.Table = like.Table // shared: only Reslot replaces it
			continue
		}
		pool.Hash()
		r.hashed = append(r.hashed, pool)
	}
	return model.Maglev
}

// maxHashed is how many endpoints the tables of one Service may have together, which
// differ from port to port only if the endpoints do: as many as two IP families have.
const maxHashed = 2 * model.MaglevSlots

// noTables reports why pools get no tables; "" if they do.
func (r *Result) noTables(several []*model.Pool) string {
	endpoints := 0
	for _, pool := range r.hashed {
		endpoints += len(pool.Endpoints)
	}
	for _, pool := range several {
		if n := len(pool.Endpoints); n > model.MaglevSlots {
			return fmt.Sprintf("%d endpoints, maglev has room for %d", n, model.MaglevSlots)
		}
		if r.index.mostSlots < model.MaglevSlots {
			return fmt.Sprintf("%d frontends (ports x addresses), maglev has room for %d", r.index.frontends, MaxEntries/model.MaglevSlots)
		}
		if r.hashedLike(pool) == nil {
			endpoints += len(pool.Endpoints)
		}
	}
	if endpoints > maxHashed {
		return fmt.Sprintf("ports with other endpoints than one another, together %d, maglev has room for %d", endpoints, maxHashed)
	}
	return ""
}

// hashedLike returns a pool that has the table of another one; nil if there is none yet.
func (r *Result) hashedLike(pool *model.Pool) *model.Pool {
	if i := slices.IndexFunc(r.hashed, pool.HashesLike); i >= 0 {
		return r.hashed[i]
	}
	return nil
}
