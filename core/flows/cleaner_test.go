// SPDX-License-Identifier: Apache-2.0

package flows_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/flows/flowtest"
	"github.com/tandem-proxy/tandem/core/model"
)

func send(t *flowtest.Table, dst, endpoint string) {
	t.Translate(func(model.Proto, netip.AddrPort, netip.AddrPort) netip.AddrPort {
		return netip.MustParseAddrPort(endpoint)
	})
	t.Send(flowtest.Conn{Proto: model.UDP, Client: netip.MustParseAddrPort("10.244.1.10:4000"), Dst: netip.MustParseAddrPort(dst)})
}

func gone(front string, endpoints ...string) flows.Match {
	m := flows.Match{Proto: model.UDP, Frontend: netip.MustParseAddrPort(front)}
	for _, e := range endpoints {
		m.Gone = flows.SetOf(append(m.Gone, netip.MustParseAddrPort(e))...)
	}
	return m
}

func TestCleanerDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table flowtest.Table
		send(&table, vip, epA)
		var reports []flows.Report
		c := flows.Start(t.Context(), &table, flows.Hooks{Cleaned: func(r flows.Report) { reports = append(reports, r) }})
		defer c.Close()
		c.Update(host(), []model.Delta{{Old: port("dns", list(vip), list(epA, epB)), New: port("dns", list(vip), list(epB))}})
		synctest.Wait()
		if len(table.Flows()) != 0 {
			t.Errorf("left: %v", table.Flows())
		}
		if len(reports) != 1 || reports[0].Deleted != 1 || reports[0].Frontends != 1 || reports[0].Err != nil {
			t.Errorf("reports %+v", reports)
		}
	})
}

func TestCleanerRetriesWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table flowtest.Table
		send(&table, vip, epA)
		fault := errors.New("no buffer space")
		table.Fail(fault, fault, fault, fault)
		var at []time.Duration
		start := time.Now()
		c := flows.Start(t.Context(), &table, flows.Hooks{Cleaned: func(flows.Report) { at = append(at, time.Since(start)) }})
		c.Enqueue([]flows.Match{gone(vip, epA)})
		time.Sleep(time.Minute)
		c.Close()
		want := []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond}
		if len(at) != len(want) {
			t.Fatalf("attempts at %v, want %v", at, want)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("attempt %d after %v, want %v", i, at[i], want[i])
			}
		}
		if len(table.Flows()) != 0 {
			t.Errorf("left: %v", table.Flows())
		}
	})
}

func TestNewWorkDoesNotWaitForTheBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table flowtest.Table
		fault := errors.New("busy")
		table.Fail(fault, fault, fault, fault, fault, fault, fault)
		c := flows.Start(t.Context(), &table, flows.Hooks{})
		defer c.Close()
		c.Enqueue([]flows.Match{gone(vip, epA)})
		time.Sleep(6400 * time.Millisecond) // seven failures; the next attempt would be at 12.7 s
		send(&table, lb, epB)
		c.Enqueue([]flows.Match{gone(lb, epB)})
		time.Sleep(100 * time.Millisecond)
		if len(table.Flows()) != 0 {
			t.Errorf("left: %v", table.Flows())
		}
	})
}

// A table that fails must not, when it recovers, lose flows to endpoints that
// came back in the meantime.
func TestLateCleanupSparesReturnedEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table flowtest.Table
		fault := errors.New("busy")
		table.Fail(fault, fault, fault)
		c := flows.Start(t.Context(), &table, flows.Hooks{})
		defer c.Close()
		two, one := port("dns", list(vip), list(epA, epB)), port("dns", list(vip), list(epB))
		c.Update(host(), []model.Delta{{Old: two, New: one}})
		synctest.Wait()
		c.Update(host(), []model.Delta{{Old: one, New: two}})
		send(&table, vip, epA)
		time.Sleep(time.Minute)
		if len(table.Flows()) != 1 {
			t.Error("the flow to an endpoint that is back was deleted")
		}
	})
}

func TestCleanerMerges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var table flowtest.Table
		fault := errors.New("busy")
		table.Fail(fault)
		c := flows.Start(t.Context(), &table, flows.Hooks{})
		defer c.Close()
		for range 1000 {
			c.Enqueue([]flows.Match{gone(vip, epA), gone(lb, epA), gone(vip, epB)})
		}
		time.Sleep(time.Second)
		asked := table.Asked()
		if last := asked[len(asked)-1]; len(asked) > 3 || len(last) != 2 || len(last[0].Gone) != 2 {
			t.Errorf("%d calls, the last %+v", len(asked), last)
		}
	})
}

func TestCleanerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := stuckTable{make(chan struct{})}
		dropped := 0
		c := flows.Start(t.Context(), stuck, flows.Hooks{Dropped: func(_ string, n int) { dropped += n }})
		c.Enqueue([]flows.Match{gone(vip, epA)})
		<-stuck.busy
		for i := range 70000 {
			m := gone(vip, epA)
			m.Frontend = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(1+i>>16))
			c.Enqueue([]flows.Match{m})
		}
		c.Close()
		if dropped != 70000-1<<16 {
			t.Errorf("dropped %d", dropped)
		}
	})
}

// stuckTable never finishes before its context ends.
type stuckTable struct{ busy chan struct{} }

func (s stuckTable) Delete(ctx context.Context, _ []flows.Match, _ func(flows.Flow) bool) (int, error) {
	close(s.busy)
	<-ctx.Done()
	return 0, ctx.Err()
}

func TestCleanerStopsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var table flowtest.Table
		table.Fail(errors.New("busy"))
		c := flows.Start(ctx, &table, flows.Hooks{})
		c.Enqueue([]flows.Match{gone(vip, epA)})
		synctest.Wait() // in the back-off now
		cancel()
		synctest.Wait()
		c.Close()
		c.Enqueue([]flows.Match{gone(vip, epA)}) // must not block or panic
		if n := len(table.Asked()); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
}

// The same holds for what comes while the table is at work, and then fails.
func TestRevisionDuringAFailingAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := slowTable{&flowtest.Table{}}
		table.Fail(errors.New("busy"))
		c := flows.Start(t.Context(), table, flows.Hooks{})
		defer c.Close()
		two, one := port("dns", list(vip), list(epA, epB)), port("dns", list(vip), list(epB))
		c.Update(host(), []model.Delta{{Old: two, New: one}})
		synctest.Wait()
		c.Update(host(), []model.Delta{{Old: one, New: two}})
		send(table.Table, vip, epA)
		time.Sleep(time.Minute)
		if asked := len(table.Asked()); asked != 2 || len(table.Flows()) != 1 {
			t.Errorf("%d attempts, left %v", asked, table.Flows())
		}
	})
}

// Nor must a table that is at work delete a flow that newer rules made: its answer would
// be lost. The flow may begin before the rules' own clean-up is asked for.
func TestCorrectionDuringAnAttempt(t *testing.T) {
	none, served := port("dns", list(vip), nil), port("dns", list(vip), list(epA))
	for name, before := range map[string][]model.Delta{
		"no endpoints yet": {{New: none}},
		"removed":          {{Old: port("dns", list(vip), list(epB))}},
		"endpoint gone":    {{Old: served, New: none}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := slowTable{&flowtest.Table{}}
				c := flows.Start(t.Context(), table, flows.Hooks{})
				defer c.Close()
				c.Update(host(), before)
				synctest.Wait() // at work
				c.Prepare([]model.Delta{{New: served}})
				send(table.Table, vip, epA)
				time.Sleep(time.Minute)
				if len(table.Flows()) != 1 {
					t.Error("a flow of newer rules was deleted")
				}
			})
		})
	}
}

// slowTable takes its time.
type slowTable struct{ *flowtest.Table }

func (s slowTable) Delete(ctx context.Context, matches []flows.Match, stale func(flows.Flow) bool) (int, error) {
	time.Sleep(time.Second)
	return s.Table.Delete(ctx, matches, stale)
}
