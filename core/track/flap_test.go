// SPDX-License-Identifier: Apache-2.0

package track_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/growth"
	"github.com/tandem-proxy/tandem/core/track"
)

// An endpoint that comes and goes at an external IP which many Services have, each with ports of its own, decides
// nothing where no other namespace is concerned: it costs no Service a look.
func TestAnEndpointThatDecidesNothing(t *testing.T) {
	const services, ports = 50, 500
	tr := track.New()
	tr.SetHost(host("a"))
	for i := range services {
		var all []uint16
		for p := range ports {
			all = append(all, uint16(1+i*ports+p))
		}
		s := service(fmt.Sprint("s", i), fmt.Sprint("10.96.1.", i), all...)
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.18.0.1")}
		tr.Set(s)
	}
	tr.Set(service("flaps", "10.96.2.1", 80))
	tr.Flush()
	for _, ips := range [][]string{{"198.18.0.1"}, {}, {"198.18.0.1", "10.0.0.1"}} {
		before := tr.Stats().Resolved
		tr.Set(slice("flaps-1", "flaps", 80, ips...))
		took := growth.Timed(func() { tr.Flush() })
		n := tr.Stats().Resolved - before
		t.Logf("%d Services resolved, with %d ports each, in %s", n, ports, took)
		if n != 1 {
			t.Errorf("endpoints %v: %d Services were resolved, want 1", ips, n)
		}
	}
}

// Many EndpointSlices with the same address, each as often as a slice has endpoints: what a change of one costs does
// not grow with their number.
func TestSlicesOfOneAddress(t *testing.T) {
	const most = 256
	run := func(n int) (took []time.Duration) {
		tr := track.New()
		tr.SetHost(host("a"))
		same := make([]string, 100)
		for i := range same {
			same[i] = "10.0.0.1"
		}
		for i := range n {
			tr.Set(slice(fmt.Sprint("s", i), fmt.Sprint("s", i), 80, same...))
		}
		tr.Flush()
		return []time.Duration{growth.Timed(func() {
			for i := range n {
				tr.Delete(&model.Slice{Name: model.SliceName{Namespace: "ns", Name: fmt.Sprint("s", i)}})
			}
		})}
	}
	if err := growth.Linear(most, run); err != nil {
		t.Error(err)
	}
}
