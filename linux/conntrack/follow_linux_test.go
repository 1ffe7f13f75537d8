// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
)

func tcp(src, dst, replySrc string, status uint32) made {
	return made{proto: model.TCP, src: src, dst: dst, replySrc: replySrc, status: status}
}

// handshakes are flows of which an Observer shows the first two.
var handshakes = []made{
	tcp("10.244.1.10:1000", "10.96.0.10:80", "10.244.2.2:8080", 0),
	tcp("[fd00::1]:1000", "[fd00:10:96::1]:80", "[fd00:2::2]:8080", 0),
	tcp("10.244.1.10:1001", "10.96.0.10:80", "10.244.2.2:8080", seenReply),
	tcp("10.244.1.10:1002", "10.244.9.9:80", "", 0),
	udp("10.244.1.10:1003", "10.96.0.10:53", "10.244.2.2:5353"),
}

// The kernel marks flows that were redirected itself, and no tool can: a mark is
// asked for in the tests of the modes.
func TestObserver(t *testing.T) {
	for _, filters := range []bool{true, false} {
		inNetns(t, func(*Table) {
			createAll(t, handshakes...)
			o, err := Observe()
			if err != nil {
				t.Error(err)
				return
			}
			defer o.Close()
			o.SetUnmarked(true)
			o.table.canFilter = filters
			show := func(f suspect.Flow) string { return fmt.Sprint(f.Client, " ", f.Frontend, " ", f.Endpoint) }
			var waiting, seen []string
			if err := o.Unanswered(t.Context(), func(f suspect.Flow) { waiting = append(waiting, show(f)) }); err != nil {
				t.Error(err)
			}
			slices.Sort(waiting)
			if want := []string{"10.244.1.10 10.96.0.10:80 10.244.2.2:8080", "fd00::1 [fd00:10:96::1]:80 [fd00:2::2]:8080"}; !slices.Equal(waiting, want) {
				t.Errorf("unanswered: %v, want %v", waiting, want)
			}
			if err := o.Answered(t.Context(), netip.MustParseAddr("10.244.2.2"), func(f suspect.Flow) { seen = append(seen, show(f)) }); err != nil {
				t.Error(err)
			}
			if want := []string{"10.244.1.10 10.96.0.10:80 10.244.2.2:8080"}; !slices.Equal(seen, want) {
				t.Errorf("answered: %v, want %v", seen, want)
			}
			if any, err := o.AnySeen(t.Context()); !any || err != nil {
				t.Errorf("any answered: %t, %v", any, err)
			}
			if o.Spent() <= 0 {
				t.Error("looks cost nothing")
			}
		})
	}
}

// Only handshakes with an endpoint that is gone are deleted; connections are kept.
func TestHandshakesAreDeleted(t *testing.T) {
	inNetns(t, func(table *Table) {
		createAll(t, append(slices.Clone(handshakes), tcp("10.244.1.10:1004", "10.96.0.10:80", "10.244.2.3:8080", 0))...)
		gone := flows.Match{Proto: model.TCP, Frontend: netip.MustParseAddrPort("10.96.0.10:80"), Gone: flows.SetOf(netip.MustParseAddrPort("10.244.2.2:8080"))}
		n, err := deleteStale(t.Context(), table, []flows.Match{gone})
		if n != 1 || err != nil {
			t.Errorf("deleted %d, %v; want the one that has no answer", n, err)
		}
		if left := len(snapshot(t)); left != len(handshakes) {
			t.Errorf("%d entries left", left)
		}
	})
}

// BenchmarkLook measures a look at a table of DNATed connections, all of them answered.
func BenchmarkLook(b *testing.B) {
	for _, size := range []int{1, 10_000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			inNetns(b, func(*Table) {
				create(b, size, func(n int) made {
					m := bystander(n)
					m.proto, m.status = model.TCP, seenReply
					return m
				})
				defer command(b, "", "conntrack", "-F") // all namespaces share one hash table
				o, err := Observe()
				if err != nil {
					b.Error(err)
					return
				}
				defer o.Close()
				o.SetUnmarked(true)
				for b.Loop() {
					if err := o.Unanswered(b.Context(), func(suspect.Flow) {}); err != nil {
						b.Error(err)
					}
				}
				b.ReportMetric(float64(o.Spent())/float64(time.Millisecond)/float64(b.N), "cpu-ms/op")
			})
		})
	}
}
