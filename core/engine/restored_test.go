// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/growth"
)

// After a flush of the rules all ports of a Service are repaired at once. What it
// costs to report them must not grow with the square of that.
func TestAllPortsOfAServiceAreRestored(t *testing.T) {
	restore := func(n int) []time.Duration {
		s := &model.Service{Name: model.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
		var repaired []model.PortID
		for i := range n {
			p := model.ServicePort{Name: "p" + string(rune('a'+i)), Proto: model.TCP, Port: uint16(1 + i)}
			s.Ports = append(s.Ports, p)
			repaired = append(repaired, model.PortID{Service: s.Name, Name: p.Name, Proto: p.Proto})
		}
		e := New(Options{})
		e.tracker.SetHost(&model.Host{Name: "here"})
		e.tracker.Set(s)
		e.tracker.Flush()
		return []time.Duration{growth.Timed(func() {
			if got := len(e.restored(repaired)); got != n {
				t.Fatalf("%d of %d ports are reported", got, n)
			}
		})}
	}
	if err := growth.Linear(2000, restore); err != nil {
		t.Error(err)
	}
}
