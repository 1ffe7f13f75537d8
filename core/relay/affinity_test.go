// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Connections that a client makes at once, before any of them is established, go to one
// endpoint; so do those that find it dead, and the client is not bound to one that never
// answered.
func TestConnectionsAtOnceShareAnEndpoint(t *testing.T) {
	const clients, connections, timeout = 20, 5, time.Hour
	a, b, now := Balance(weightedPool(1, 1, 1, 1), model.DefaultScheduler), &balancer{}, time.Unix(1000, 0)
	split := func(all []choice) bool {
		for _, c := range all {
			if c.endpoint() != all[0].endpoint() {
				return true
			}
		}
		return false
	}
	first, later := 0, 0
	for i := range clients {
		var all []choice
		for j := range connections {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(1024+j))
			all = append(all, b.choose(model.FromOutside, from, a, timeout, now))
		}
		if split(all) {
			first++
		}
		dead := all[0].endpoint()
		for j := range all {
			all[j].failed(now)
		}
		if split(all) || all[0].endpoint() == dead {
			later++
		}
		if i%2 == 0 {
			all[0].connected(now)
		}
	}
	if first > 0 || later > 0 {
		t.Errorf("%d of %d clients are spread over endpoints, %d after a failure", first, clients, later)
	}
	for i := range clients {
		_, kept := b.affinity.get(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), now.Add(time.Minute))
		if kept != (i%2 == 0) {
			t.Errorf("client %d, connected: %t, is bound after a minute: %t", i, i%2 == 0, kept)
		}
	}
}
