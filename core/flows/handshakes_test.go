// SPDX-License-Identifier: Apache-2.0

package flows_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
)

func tcpPort(fronts, endpoints []string) *model.Port {
	p := port("web", fronts, endpoints)
	p.ID.Proto = model.TCP
	return p
}

func TestHandshakes(t *testing.T) {
	all := list(vip, nodePort)
	tcp := func(dst, from string, answered bool) flows.Flow {
		f := flow(dst, from)
		f.Proto, f.Answered = model.TCP, answered
		return f
	}
	gone := []model.Delta{{Old: tcpPort(all, list(epA, epB)), New: tcpPort(all, list(epB))}}
	removed := []model.Delta{{Old: tcpPort(all, list(epA, epB))}}
	renamed := []model.Delta{{New: tcpPort(all, list(epB))}, {Old: tcpPort(all, list(epA, epB))}}
	renamed[0].New.ID.Name = "http"
	for _, c := range []struct {
		name   string
		deltas []model.Delta
		flow   flows.Flow
		stale  bool
	}{
		{"it waits for one that is gone", gone, tcp(vip, epA, false), true},
		{"by a node port", gone, tcp("192.0.2.1:30053", epA, false), true},
		{"it has an answer", gone, tcp(vip, epA, true), false},
		{"it waits for one that is there", gone, tcp(vip, epB, false), false},
		{"it is not translated", gone, tcp(vip, vip, false), false},
		{"the Service is gone", removed, tcp(vip, epB, false), true},
		{"the port has another name", renamed, tcp(vip, epB, false), false},
		{"it waits for one that the renamed port has lost", renamed, tcp(vip, epA, false), true},
		{"no client waits for new flows", []model.Delta{{New: tcpPort(all, list(epA))}}, tcp(vip, vip, false), false},
	} {
		if got := flowtest.IndexOf(flows.Handshakes(host(), c.deltas)).Stale(c.flow); got != c.stale {
			t.Errorf("%s: stale: %t", c.name, got)
		}
	}
	if got := flows.Handshakes(host(), []model.Delta{{Old: port("dns", all, list(epA)), New: port("dns", all, nil)}}); got != nil {
		t.Errorf("UDP: %v", got)
	}
	if got := flows.Stale(host(), gone); got != nil {
		t.Errorf("TCP flows are stale, too: %v", got)
	}
}

// lateTable takes a second for everything.
type lateTable struct{ at []time.Time }

func (s *lateTable) Delete(context.Context, []flows.Match, func(flows.Flow) bool) (int, error) {
	s.at = append(s.at, time.Now())
	time.Sleep(time.Second)
	return 0, nil
}

// However often endpoints change, looking for handshakes takes at most a twentieth of the time.
func TestHandshakesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table lateTable
		c := flows.StartHandshakes(t.Context(), &table, flows.Hooks{})
		start := time.Now()
		for time.Since(start) < 100*time.Second {
			c.Update(host(), []model.Delta{{Old: tcpPort(list(vip), list(epA, epB)), New: tcpPort(list(vip), list(epB))}})
			time.Sleep(10 * time.Millisecond)
		}
		c.Close()
		if n := len(table.at); n != 5 && n != 6 {
			t.Errorf("%d looks of a second each in 100 s", n)
		}
		if first := table.at[0].Sub(start); first < 20*time.Millisecond || first > 500*time.Millisecond { // a SYN is repeated after a second
			t.Errorf("the first after %s", first)
		}
	})
}
