// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// Whatever the endpoints of the zones: where all zones send alike, each zone's connections
// are all shared out, and no endpoint gets more than Above times its fair share.
func TestSpillIsBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		var all []endpoint
		var zones []string
		for z := range 1 + rng.IntN(5) {
			zone := fmt.Sprint("zone-", z)
			zones = append(zones, zone)
			for range 1 + rng.IntN(8) {
				all = append(all, endpoint{
					addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(z), byte(len(all))}), 80),
					hints: &model.Hints{Zones: []string{zone}}, share: float64(1 + rng.IntN(3)),
				})
			}
		}
		total := 0.0
		for _, e := range all {
			total += e.share
		}
		above := 1 + 3*rng.Float64()
		gets := map[netip.AddrPort]float64{}
		for _, zone := range zones {
			meant, _ := hintedFor(zone, all, func(h *model.Hints) []string { return h.Zones })
			shared, spills := spill(model.Spill{Above: above}, zone, all, meant)
			if !spills {
				shared = meant
			}
			sum := 0.0
			for _, e := range shared {
				sum += e.share
			}
			for _, e := range shared {
				gets[e.addr] += e.share / sum / float64(len(zones))
			}
			if spills && math.Abs(sum-1) > 1e-9 {
				t.Fatalf("%s shares out %.6f of its connections", zone, sum)
			}
		}
		for _, e := range all {
			if fair := e.share / total; gets[e.addr] > above*fair+1e-9 {
				t.Fatalf("above %.3f: %s gets %.4f, its fair share is %.4f", above, e.addr, gets[e.addr], fair)
			}
		}
	}
}

func TestWeightsTakeNoMoreThanTheyFit(t *testing.T) {
	for _, tt := range []struct {
		shares []float64
		want   string
	}{
		{[]float64{100, 100}, "[0 0]"},
		{[]float64{80, 20}, "[80 20]"},
		{[]float64{1 << 20, 1 << 18}, "[4 1]"},
		{[]float64{80.0 / 3, 80.0 / 3, 80.0 / 3, 20.0 / 7, 20.0 / 7, 20.0 / 7, 20.0 / 7, 20.0 / 7, 20.0 / 7, 20.0 / 7}, "[28 28 28 3 3 3 3 3 3 3]"},
		{[]float64{math.Pi, math.E}, "[15 13]"},
		{[]float64{0.5, 0.00001}, "[65535 1]"},
		{[]float64{0.5, 0.001}, "[498 1]"},
	} {
		pool := &model.Pool{}
		var from []endpoint
		for i, s := range tt.shares {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
			pool.Endpoints = append(pool.Endpoints, model.Endpoint{Addr: at})
			from = append(from, endpoint{addr: at, share: s})
		}
		weigh(pool, from, model.MaxSlots)
		var got []uint16
		for _, e := range pool.Endpoints {
			got = append(got, e.Weight)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%v: weights %v, want %s", tt.shares, got, tt.want)
		}
	}
}
