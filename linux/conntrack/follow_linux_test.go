// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/suspect"
)

func tcp(src, dst, replySrc string, status uint32) made {
	return made{proto: model.TCP, src: src, dst: dst, replySrc: replySrc, status: status}
}

// handshakes are flows of which a Follower shows the first three.
var handshakes = []made{
	tcp("10.244.1.10:1000", "10.96.0.10:80", "10.244.2.2:8080", 0),
	tcp("[fd00::1]:1000", "[fd00:10:96::1]:80", "[fd00:2::2]:8080", 0),
	tcp("10.244.1.10:1001", "10.96.0.10:80", "10.244.2.2:8080", seenReply),
	tcp("10.244.1.10:1002", "10.244.9.9:80", "", 0),
	udp("10.244.1.10:1003", "10.96.0.10:53", "10.244.2.2:5353"),
}

// follower is one that shows flows without the DNAT mark: the kernel marks those that were redirected
// itself, and no tool can. A mark is asked for in the tests of the modes.
func follower(t testing.TB) *Follower {
	f, err := Follow()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	f.SetUnmarked(true)
	if all, err := f.New(t.Context(), func(suspect.Flow, suspect.State, time.Time) { t.Error("a flow before it listens") }); all || err != nil {
		t.Fatalf("at first: all %t, %v", all, err)
	}
	return f
}

// news returns the new flows.
func news(t testing.TB, f *Follower) (flows []suspect.Flow, all bool) {
	all, err := f.New(t.Context(), func(flow suspect.Flow, s suspect.State, _ time.Time) {
		if s != suspect.Unknown {
			t.Errorf("%+v is in state %d", flow, s)
		}
		flows = append(flows, flow)
	})
	if err != nil {
		t.Error(err)
	}
	return flows, all
}

func TestFollower(t *testing.T) {
	inNetns(t, func(table *Table) {
		f := follower(t)
		createAll(t, handshakes...)
		flows, all := news(t, f)
		var shown []string
		for _, flow := range flows {
			shown = append(shown, fmt.Sprint(flow.Client, " ", flow.Frontend, " ", flow.Endpoint))
		}
		if want := []string{"10.244.1.10:1000 10.96.0.10:80 10.244.2.2:8080", "[fd00::1]:1000 [fd00:10:96::1]:80 [fd00:2::2]:8080", "10.244.1.10:1001 10.96.0.10:80 10.244.2.2:8080"}; !slices.Equal(shown, want) || !all {
			t.Errorf("new flows: %v, all %t; want %v", shown, all, want)
			return
		}
		other := flows[0]
		other.ID++
		states := map[int]suspect.State{}
		if err := f.States(t.Context(), append(flows, other), func(i int, s suspect.State) { states[i] = s }); err != nil {
			t.Error(err)
		}
		if want := map[int]suspect.State{0: suspect.Waiting, 1: suspect.Waiting, 2: suspect.Answered, 3: suspect.Gone}; !maps.Equal(states, want) {
			t.Errorf("states %v, want %v", states, want)
		}
		if more, all := news(t, f); len(more) > 0 || !all {
			t.Errorf("once more: %v, all %t", more, all)
		}
		if f.Spent() <= 0 {
			t.Error("looks cost nothing")
		}
	})
}

// Flows are followed and deleted in each zone, also where a rule gives one direction a zone (`ct original zone set`).
func TestFlowsOfZones(t *testing.T) {
	inNetns(t, func(table *Table) {
		f := follower(t)
		both := tcp("10.244.1.10:1000", "10.96.0.10:80", "10.244.2.2:8080", 0)
		both.zone = 7
		asked, answered := both, both
		asked.oneWay, answered.oneWay = ctaTupleOrig, ctaTupleReply
		asked.src, answered.src = "10.244.1.10:1001", "10.244.1.10:1002"
		createAll(t, both, asked, answered)
		known, _ := news(t, f)
		for i, zone := range []uint16{7, 7, 0} {
			if len(known) != 3 || known[i].Zone != zone {
				t.Fatalf("%+v", known)
			}
		}
		err := f.States(t.Context(), known[1:], func(i int, s suspect.State) {
			if s != suspect.Waiting {
				t.Errorf("%+v is in state %v", known[1+i], s)
			}
		})
		if err != nil {
			t.Error(err)
		}
		stale := func(flows.Flow) bool { return true }
		if n, err := table.DeleteThese(t.Context(), known[1:], stale); n != 2 || err != nil || len(snapshot(t)) != 1 {
			t.Errorf("deleted %d, %v, left %v", n, err, flowsOf(t, snapshot(t)))
		}
	})
}

// Of more flows than it can show a Follower takes samples, and says so; when there are fewer it shows
// all of them again.
func TestFollowerTakesSamples(t *testing.T) {
	inNetns(t, func(*Table) {
		f := follower(t)
		create(t, 4*maxNew, func(n int) made {
			return tcp(fmt.Sprintf("10.1.%d.%d:1000", n/250, n%250), "10.96.0.10:80", "10.244.2.2:8080", 0)
		})
		defer command(t, "", "conntrack", "-F") // all namespaces share one hash table
		if flows, all := news(t, f); all || len(flows) != maxNew {
			t.Errorf("%d flows, all %t; want %d and more", len(flows), all, maxNew)
		}
		looks := 0
		for all := false; !all && looks < 20; looks++ {
			_, all = news(t, f)
		}
		if looks == 20 {
			t.Error("it samples for ever")
		}
		createAll(t, handshakes...)
		if flows, all := news(t, f); len(flows) != 3 || !all {
			t.Errorf("after that: %d flows, all %t", len(flows), all)
		}
		f.Stop()
		createAll(t, tcp("10.244.1.10:1009", "10.96.0.10:80", "10.244.2.2:8080", 0))
		if flows, all := news(t, f); len(flows) != 0 || all {
			t.Errorf("what began while it was stopped: %d flows, all %t", len(flows), all)
		}
	})
}

// That reports were lost is still known after Wait, also where those that are left show no flow to an endpoint:
// IPVS marks none, so that all of the node's connections are reported.
func TestFollowerKnowsOfLossAfterWait(t *testing.T) {
	inNetns(t, func(*Table) {
		f := follower(t)
		create(t, 8000, func(n int) made {
			return tcp(fmt.Sprintf("10.1.%d.%d:1000", n/250, n%250), "192.0.2.7:80", "", 0)
		})
		defer command(t, "", "conntrack", "-F") // all namespaces share one hash table
		f.Wait(t.Context())
		if flows, all := news(t, f); all || len(flows) != 0 {
			t.Errorf("%d flows, all %t; want none, and that there were more reports", len(flows), all)
		}
	})
}

// What has answered this node itself is known from before the start, and what others were answered is not.
func TestPrior(t *testing.T) {
	inNetns(t, func(*Table) {
		createAll(t,
			tcp("192.0.2.1:1000", "10.244.2.2:8080", "", seenReply), tcp("192.0.2.1:1001", "10.96.0.10:80", "10.244.2.3:8080", seenReply),
			tcp("192.0.2.1:1002", "10.244.2.4:8080", "", 0), tcp("10.244.1.1:1000", "10.244.2.5:8080", "", seenReply),
			tcp("192.0.2.1:1003", "10.244.2.2:8080", "", seenReply), tcp("[fd00::1]:2000", "[fd00:2::2]:8080", "", seenReply))
		f := follower(t)
		local := func(a netip.Addr) bool {
			return a == netip.MustParseAddr("192.0.2.1") || a == netip.MustParseAddr("fd00::1")
		}
		createAll(t, handshakes[:3]...)
		_, _ = news(t, f)
		all, waiting, err := f.Prior(t.Context(), local, 100)
		slices.SortFunc(all, netip.AddrPort.Compare)
		if want := "[10.244.2.2:8080 10.244.2.3:8080 [fd00:2::2]:8080]"; fmt.Sprint(all) != want || err != nil {
			t.Errorf("%v, %v; want %s", all, err, want)
		}
		again, err := f.Waiting(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, waiting := range [][]suspect.Flow{waiting, again} {
			clients := []string{}
			for _, w := range waiting {
				clients = append(clients, w.Client.String())
			}
			slices.Sort(clients)
			if want := "[10.244.1.10:1000 [fd00::1]:1000]"; fmt.Sprint(clients) != want {
				t.Errorf("%v wait, want %s", clients, want)
			}
		}
		if some, waiting, err := f.Prior(t.Context(), local, 1); len(some) != 1 || len(waiting) != 2 || err != nil {
			t.Errorf("%d have answered, of at most one, and %d wait, of more than one; want one more: %v", len(some), len(waiting), err)
		}
		if some, err := f.Waiting(t.Context(), 1); len(some) != 2 || err != nil {
			t.Errorf("%d wait, of more than one; want one more: %v", len(some), err)
		}
	})
}

// Of some flows those that are stale are deleted, and no others are touched.
func TestTheseAreDeleted(t *testing.T) {
	inNetns(t, func(table *Table) {
		f := follower(t)
		createAll(t, handshakes...)
		known, _ := news(t, f)
		createAll(t, tcp("10.244.1.10:1004", "10.96.0.10:80", "10.244.2.2:8080", 0)) // not known
		gone := flowtest.IndexOf([]flows.Match{{Proto: model.TCP, Frontend: netip.MustParseAddrPort("10.96.0.10:80"), Gone: flows.SetOf(netip.MustParseAddrPort("10.244.2.2:8080"))}})
		if n, err := table.DeleteThese(t.Context(), known, gone.Stale); n != 1 || err != nil {
			t.Errorf("deleted %d, %v; want the one that has no answer", n, err)
		}
		if n, err := table.DeleteThese(t.Context(), known, gone.Stale); n != 0 || err != nil {
			t.Errorf("again: deleted %d, %v", n, err)
		}
		if left := len(snapshot(t)); left != len(handshakes) {
			t.Errorf("%d entries left, want %d", left, len(handshakes))
		}
	})
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

// BenchmarkFollow measures a look after new flows, and their states, beside connections that are there.
func BenchmarkFollow(b *testing.B) {
	for _, fresh := range []int{0, 20, 200} {
		b.Run(fmt.Sprint(fresh), func(b *testing.B) {
			inNetns(b, func(*Table) {
				f := follower(b)
				defer command(b, "", "conntrack", "-F") // all namespaces share one hash table
				n := 0
				for b.Loop() {
					b.StopTimer()
					create(b, fresh, func(int) made {
						n++
						return tcp(fmt.Sprintf("10.%d.%d.%d:1000", n>>16, n>>8&255, n&255), "10.96.0.10:80", "10.244.2.2:8080", seenReply)
					})
					b.StartTimer()
					flows, _ := news(b, f)
					if err := f.States(b.Context(), flows, func(int, suspect.State) {}); err != nil {
						b.Error(err)
					}
				}
				b.ReportMetric(float64(f.Spent())/float64(time.Microsecond)/float64(b.N), "cpu-µs/op")
			})
		})
	}
}

// Flows of all protocols that begin are read, so many at a time, but for those that nothing has redirected; that some did
// not fit into the queue is said.
func TestBeginnings(t *testing.T) {
	inNetns(t, func(*Table) {
		b, err := OpenBeginnings(true)
		if err != nil {
			t.Error(err)
			return
		}
		defer b.Close()
		createAll(t, handshakes...)
		look := func(most int) (seen []string, lost bool) {
			lost, err := b.Look(most, func(f NewFlow) { seen = append(seen, fmt.Sprint(f.Proto, " ", f.Src, " ", f.Dst, " ", f.To)) })
			if err != nil {
				t.Error(err)
			}
			return seen, lost
		}
		first, lost := look(1)
		rest, lostToo := look(100)
		want := []string{
			"tcp 10.244.1.10:1000 10.96.0.10:80 10.244.2.2:8080", "tcp [fd00::1]:1000 [fd00:10:96::1]:80 [fd00:2::2]:8080",
			"tcp 10.244.1.10:1001 10.96.0.10:80 10.244.2.2:8080", "udp 10.244.1.10:1003 10.96.0.10:53 10.244.2.2:5353",
		}
		if seen := append(first, rest...); len(first) != 1 || !slices.Equal(seen, want) || lost || lostToo {
			t.Errorf("%v, then %v, lost: %t, %t", first, rest, lost, lostToo)
		}
		create(t, 20*maxNew, func(n int) made {
			return tcp(fmt.Sprintf("10.1.%d.%d:1000", n/250, n%250), "10.96.0.10:80", "10.244.2.2:8080", 0)
		})
		defer command(t, "", "conntrack", "-F") // all namespaces share one hash table
		if seen, lost := look(1000); len(seen) > 1000 || len(seen) == 0 || !lost {
			t.Errorf("%d flows of %d, lost: %t", len(seen), 20*maxNew, lost)
		}
	})
}
