// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// chosen counts how often each of a pool's endpoints is chosen for so many clients.
func chosen(b *balancer, a Answer, clients int) map[netip.AddrPort]int {
	n := map[netip.AddrPort]int{}
	for i := range clients {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(1024+i))
		c := b.choose(model.FromOutside, client, a, 0, time.Time{})
		n[c.endpoint()]++
	}
	return n
}

func weightedPool(weights ...uint16) *model.Pool {
	p := &model.Pool{}
	for i, w := range weights {
		p.Endpoints = append(p.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Weight: w})
	}
	p.Weigh()
	return p
}

func TestBalanceFollowsWeights(t *testing.T) {
	const clients = 10000
	pool := weightedPool(80, 20)
	for _, s := range []model.Scheduler{model.DefaultScheduler, model.RoundRobin, model.Random} {
		n := chosen(&balancer{}, Balance(pool, s), clients)
		got, most := float64(n[pool.Endpoints[0].Addr])/clients, 0.01
		if s == model.Random {
			most = 5 * math.Sqrt(.8*.2/clients) // once in a million runs
		}
		if math.Abs(got-.8) > most {
			t.Errorf("%q: %.4f of the clients, want 0.8", s, got)
		}
	}
}

// Clients are where the hash leads, whichever relay they come to and whatever others
// did before.
func TestBalanceByHash(t *testing.T) {
	pool := weightedPool(1, 1, 1)
	pool.Hash()
	a, other := Balance(pool, model.Maglev), &balancer{}
	chosen(other, a, 17)
	for i := range 3000 {
		client := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), uint16(1024+i))
		here := (&balancer{}).choose(model.FromHost, client, a, 0, time.Time{})
		there := other.choose(model.FromOutside, client, a, 0, time.Time{})
		if here.endpoint() != there.endpoint() {
			t.Fatalf("%s is sent to %s and to %s", client, here.endpoint(), there.endpoint())
		}
	}
}
