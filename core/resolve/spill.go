// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"github.com/tandem-proxy/tandem/core/model"
)

// spill lets connections of a zone reach other zones, too, where the endpoints
// that are meant for it would get more than their share (kubernetes issue 56440).
// It returns the endpoints with their shares; ok is false where the zone keeps
// its connections.
//
// Hints state where endpoints are to be used, not how much each zone
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
