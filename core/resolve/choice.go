// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// spill lets connections of a zone reach other zones, too, where the endpoints
// that are meant for it would get more than their share (kubernetes issue 56440).
// It returns the endpoints with their shares; ok is false where the zone keeps
// its connections.
//
// What is known is where endpoints are meant to be used, not how much each zone
// sends. So zones are taken to send alike, and the fair share is that of an
// endpoint if all served all zones. Then no endpoint of any zone gets more than
// Above times that share: what a zone has too much of goes to the others in
// proportion to what they have left. All nodes of a zone come to the same
// result, which changes with the endpoints only: nothing that is measured feeds
// back into it.
func spill(s model.Spill, zone string, all, meant []endpoint) (shared []endpoint, ok bool) {
	if len(meant) < s.Floor && len(meant) < len(all) {
		return all, true
	}
	zones, weights := zoneWeights(all)
	total, own := 0.0, weights[zone]
	for _, e := range all {
		total += e.share
	}
	sent := 1 / float64(len(zones)) // by each zone
	most := func(w float64) float64 { return s.Above * w / total }
	if s.Above == 0 || sent <= most(own) {
		return nil, false
	}
	spare, sum := map[string]float64{}, 0.0
	for _, z := range zones {
		if left := most(weights[z]) - sent; left > 0 {
			spare[z] = left
			sum += left
		}
	}
	kept := most(own) / sent
	for _, e := range all {
		share := 0.0
		for _, z := range e.hints.Zones {
			if z == zone {
				share = kept * e.share / own
				break
			}
			if spare[z] > 0 {
				share += (1 - kept) * spare[z] / sum * e.share / weights[z]
			}
		}
		if e.share = share; share > 0 {
			shared = append(shared, e)
		}
	}
	return shared, true
}

// zoneWeights returns the zones that endpoints are meant for, in the order in which
// they are met, and the weight of the endpoints of each.
func zoneWeights(all []endpoint) (zones []string, weights map[string]float64) {
	weights = map[string]float64{}
	for _, e := range all {
		for _, z := range e.hints.Zones {
			if _, known := weights[z]; !known {
				zones = append(zones, z)
			}
			weights[z] += e.share
		}
	}
	return zones, weights
}

// weigh gives the endpoints of a pool their weights: their shares, where those are
// whole numbers, else by fewestSlots. It makes at most so many slots.
func weigh(p *model.Pool, from []endpoint, most int) {
	if !slices.ContainsFunc(from, func(e endpoint) bool { return e.share != from[0].share }) {
		return
	}
	weights, unit := tenths(from)
	if weights == nil {
		weights = whole(from)
	}
	if weights == nil {
		weights = fewestSlots(from, most)
	}
	for i, w := range weights {
		p.Endpoints[i].Weight = w
	}
	p.WeighBy(unit, most)
}

// tenths returns the weights of endpoints while some are new and have a part of their
// shares (model.SliceEndpoint), and the weight of a slot: from step to step, the others
// have as many slots as before. Weights are nil if shares are no whole numbers; then a
// slot is a hundredth.
func tenths(from []endpoint) (weights []uint16, unit int) {
	if !slices.ContainsFunc(from, func(e endpoint) bool { return e.warm > 0 }) {
		return nil, 0
	}
	divisor, largest := 0, 0
	for _, e := range from {
		full := e.share
		if e.warm > 0 {
			full = math.Round(full*10/float64(e.warm)*1e6) / 1e6
		}
		if full != math.Trunc(full) {
			return nil, 1
		}
		divisor, largest = gcd(divisor, int(full)), max(largest, int(full))
	}
	if largest/divisor*10 > math.MaxUint16 {
		return nil, 1
	}
	for _, e := range from {
		weights = append(weights, uint16(max(1, math.Round(e.share*10/float64(divisor)))))
	}
	return weights, 1
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// whole returns the shares of endpoints as weights; nil if some are no whole numbers,
// or too large.
func whole(from []endpoint) (weights []uint16) {
	for _, e := range from {
		if e.share != math.Trunc(e.share) || e.share > math.MaxUint16 {
			return nil
		}
		weights = append(weights, uint16(e.share))
	}
	return weights
}

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
			pool.Table = like.Table // nobody changes it: Reslot
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
