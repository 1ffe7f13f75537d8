// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// What came, what that rewrote, and what failed are remembered; a start is one entry
// however much it delivered.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		for _, name := range []string{"a", "b", "c"} {
			b.Set(service(name, "10.96.0."+string(name[0]-'a'+'1')))
		}
		b.Synced(true)
		synctest.Wait()
		entries := b.History().Find(history.Filter{}).Entries
		if len(entries) != 1 || entries[0].Kind != "InitialList" || entries[0].Count != 3 || entries[0].Sync.Created != 4 {
			t.Fatalf("after the start: %+v", entries)
		}

		changed := time.Now()
		sleep(3 * time.Second)
		s := &model.Slice{Name: model.SliceName{Namespace: "ns", Name: "a-1"}, Service: "a", Triggered: changed, Version: 42}
		s.Ports = []model.SlicePort{{Proto: model.TCP, Port: 80}}
		s.Endpoints = []model.SliceEndpoint{{Addr: netip.MustParseAddr("10.0.0.1"), State: model.Ready | model.Serving}}
		b.Set(s)
		synctest.Wait()
		b.Delete(s)
		synctest.Wait()
		b.Delete(&model.Service{Name: model.ServiceName{Namespace: "ns", Name: "c"}})
		synctest.Wait()
		entries = b.History().Find(history.Filter{Service: model.ServiceName{Namespace: "ns", Name: "a"}}).Entries
		if len(entries) != 2 {
			t.Fatalf("%+v", entries)
		}
		added, deleted := entries[0], entries[1]
		if added.Age != 3 || added.Version != 42 || added.Verb != "added" || added.Sync.Replaced != 1 || added.Sync.Ports != 1 {
			t.Errorf("%+v %+v", added, added.Sync)
		}
		if deleted.Verb != "deleted" || deleted.Service != "ns/a" || deleted.Sync.Replaced != 1 {
			t.Errorf("%+v %+v", deleted, deleted.Sync)
		}
	})
}

// Routes and grants are in the history, and that of the Services that they name.
func TestHistoryOfRoutesAndGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Synced(true)
		synctest.Wait()
		route := &model.Route{Name: model.RouteName{Proto: model.TCP, Namespace: "ns", Name: "split"}, Parents: []model.RouteParent{{Service: "a"}}}
		grant := &model.Grant{Name: model.GrantName{Namespace: "ns", Name: "all"}, To: []string{"a"}}
		for range 2 {
			b.Set(route)
			b.Set(grant)
			synctest.Wait()
		}
		b.Delete(route)
		b.Delete(grant)
		synctest.Wait()
		got := []string{}
		for _, e := range b.History().Find(history.Filter{}).Entries {
			if e.Object != "" {
				got = append(got, strings.Join([]string{e.Kind, e.Verb, e.Object, e.Service}, " "))
			}
		}
		want := []string{
			"Route added ns/split ns/a", "ReferenceGrant added ns/all ns/a", "Route changed ns/split ns/a", "ReferenceGrant changed ns/all ns/a",
			"Route deleted ns/split ", "ReferenceGrant deleted ns/all ",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
	})
}

// A write that fails is in the history, with its error, and so is the retry that
// worked.
func TestHistoryOfAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Synced(true)
		synctest.Wait()
		var full atomic.Bool
		full.Store(true)
		b.kernel.Fail = func(ledger.Op[string, string]) error {
			if full.Load() {
				return errors.New("no space")
			}
			return nil
		}
		b.Set(service("a", "10.96.0.1"))
		synctest.Wait()
		full.Store(false)
		sleep(time.Minute)
		failed := b.History().Find(history.Filter{Failed: true}).Entries
		if len(failed) != 1 || failed[0].Object != "ns/a" || failed[0].Sync.Failed != 1 || failed[0].Sync.Err == "" {
			t.Fatalf("%+v", failed)
		}
		all := b.History().Find(history.Filter{}).Entries
		if last := all[len(all)-1]; last.Kind != "Sync" || last.Sync.Created != 1 {
			t.Errorf("%+v", last)
		}
	})
}

// Stages are parts of what a sync took in all.
func TestStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, nil)
		b.Synced(true)
		synctest.Wait()
		b.Set(service("a", "10.96.0.1"))
		synctest.Wait()
		for _, s := range b.syncs {
			if sum := s.Stages[history.Resolve] + s.Stages[history.Compile] + s.Stages[history.Write]; sum != s.Took || s.Stages[history.Queue] != s.Waiting {
				t.Errorf("%v of %v", s.Stages, s.Took)
			}
		}
	})
}
