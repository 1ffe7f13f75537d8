// SPDX-License-Identifier: Apache-2.0

package flows_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
)

// walkedTable takes as long as to walk a table with many entries.
type walkedTable struct{ *flowtest.Table }

const walk = 20 * time.Millisecond

func (w walkedTable) Delete(ctx context.Context, matches []flows.Match, stale func(flows.Flow) bool) (int, error) {
	time.Sleep(walk)
	return w.Table.Delete(ctx, matches, stale)
}

// A namespace whose endpoints come and go without an end uses up the time for stale flows, and another one's stale
// flows do not wait for it: a walk in 20 at most.
func TestATenantsChurnKeepsNoStaleFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, table := time.Now(), walkedTable{&flowtest.Table{}}
		c := flows.Start(t.Context(), table, flows.Hooks{})
		defer c.Close()
		evil := func(endpoint string) *model.Port {
			p := port("evil", list(lb), list(endpoint))
			p.ID.Service.Namespace = "evil"
			return p
		}
		done := make(chan struct{})
		defer close(done)
		go func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				case <-time.After(30 * time.Millisecond):
				}
				c.Update(host(), []model.Delta{{Old: evil(fmt.Sprintf("10.244.9.%d:53", 1+i%200)), New: evil(fmt.Sprintf("10.244.9.%d:53", 1+(i+1)%200))}})
			}
		}()
		time.Sleep(10 * time.Second)
		for i := range 5 {
			send(table.Table, vip, epA)
			c.Update(host(), []model.Delta{{Old: port("dns", list(vip), list(epA, epB)), New: port("dns", list(vip), list(epB))}})
			begin := time.Now()
			for len(table.Flows()) > 0 && time.Since(begin) < time.Minute {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(begin); took > 20*walk {
				t.Errorf("change %d: the victim's stale flow is deleted after %s, want %s", i, took, 20*walk)
			} else {
				t.Logf("change %d: %s", i, took)
			}
			time.Sleep(21300 * time.Millisecond)
		}
		if n := len(table.Asked()); time.Duration(n)*walk > time.Since(began)/10 {
			t.Errorf("%d walks in %s", n, time.Since(began))
		}
	})
}

// A namespace that fills the queue with its frontends while the table fails drops its own, and
// another one's stale flows are deleted when the table works again.
func TestATenantsFrontendsDropNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const room = 1 << 16
		var table flowtest.Table
		fault := errors.New("no buffer space")
		table.Fail(fault, fault, fault, fault, fault, fault)
		dropped := map[string]int{}
		c := flows.Start(t.Context(), &table, flows.Hooks{Dropped: func(namespace string, n int) { dropped[namespace] += n }})
		defer c.Close()
		removed := func(namespace string, first, n int) {
			p := port("many", nil, list(epC))
			p.ID.Service.Namespace = namespace
			for i := first; i < first+n; i++ {
				at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(1+i>>16))
				p.Frontends = append(p.Frontends, model.Frontend{At: at})
			}
			c.Update(host(), []model.Delta{{Old: p}})
		}
		synctest.Wait()
		removed("evil", 0, room)
		removed("evil", room, 4000)
		removed("other", 2*room, 1000)
		send(&table, vip, epA)
		c.Update(host(), []model.Delta{{Old: port("dns", list(vip), list(epA, epB)), New: port("dns", list(vip), list(epB))}})
		removed("evil", 3*room, 500)
		time.Sleep(time.Minute)
		if want := map[string]int{"evil": 4000 + 1000 + 1 + 500}; !maps.Equal(dropped, want) {
			t.Errorf("dropped %v, want %v", dropped, want)
		}
		if len(table.Flows()) != 0 {
			t.Errorf("left: %v", table.Flows())
		}
		asked := table.Asked()
		got := map[string]int{}
		for _, m := range asked[len(asked)-1] {
			got[m.Namespace]++
		}
		if got["other"] != 1000 || len(asked[len(asked)-1]) != room {
			t.Errorf("asked about %v", got)
		}
	})
}

// A machine on which each look waits long for a processor is busy, and no flow waits for that, too: the budget
// counts the processor's time.
func TestABusyMachineKeepsNoStaleFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := slowTable{&flowtest.Table{}}
		c := flows.Start(t.Context(), table, flows.Hooks{Account: func() func() time.Duration { return func() time.Duration { return 0 } }})
		defer c.Close()
		begin := time.Now()
		const changes = 5
		for range changes {
			send(table.Table, vip, epA)
			c.Update(host(), []model.Delta{{Old: port("dns", list(vip), list(epA, epB)), New: port("dns", list(vip), list(epB))}})
			for len(table.Flows()) > 0 && time.Since(begin) < time.Hour {
				time.Sleep(time.Millisecond)
			}
		}
		if took, most := time.Since(begin), (changes+1)*time.Second; took > most {
			t.Errorf("%d changes took %s, of which the table had %s", changes, took, changes*time.Second)
		}
	})
}
