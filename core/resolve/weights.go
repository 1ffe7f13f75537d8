// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"math"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

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

// fewestSlots returns weights for shares that are no whole numbers: their sum is the
// smallest number of slots that has each share within half a percent of it. Where that
// needs too many slots, weights are as fine as they can be.
func fewestSlots(from []endpoint, most int) []uint16 {
	const tolerance, distinct = 0.005, 64 // more different shares are not tried
	counts, total, largest := map[float64]int{}, 0.0, 0.0
	for _, e := range from {
		counts[e.share]++
		total += e.share
		largest = max(largest, e.share)
	}
	fits := func(perSlot float64) bool {
		for share := range counts {
			n := share / perSlot
			if math.Round(n) < 1 || math.Abs(n-math.Round(n)) > tolerance*n {
				return false
			}
		}
		return true
	}
	perSlot := largest / math.MaxUint16
	if len(counts) <= distinct {
		for n := len(from); n <= most; n++ {
			if fits(total / float64(n)) {
				perSlot = total / float64(n)
				break
			}
		}
	}
	weights := make([]uint16, len(from))
	for i, e := range from {
		weights[i] = uint16(max(1, math.Round(e.share/perSlot)))
	}
	return weights
}
