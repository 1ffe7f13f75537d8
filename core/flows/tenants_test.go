// SPDX-License-Identifier: Apache-2.0

package flows_test

import (
	"context"
	"fmt"
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
