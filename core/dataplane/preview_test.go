// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// What a preview says of random changes is what a sync then does, object by object, but
// for deletions that are delayed.
func TestPreviewIsWhatASyncDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := newBench(t, dataplane.Limits{Atomic: true})
	b.start()
	b.sync("create 0 base")
	now := make([]*model.Port, 8)
	seen := map[ledger.Verb]int{}
	for round := range 300 {
		var deltas []model.Delta
		for i := range now {
			if r.IntN(3) > 0 {
				continue
			}
			var next *model.Port
			if r.IntN(4) > 0 {
				var endpoints []string
				for e := range r.IntN(4) {
					endpoints = append(endpoints, fmt.Sprint("10.0.0.", 1+(e+r.IntN(2))%5))
				}
				next = port(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", i+1), endpoints...)
			}
			if now[i] != nil || next != nil {
				deltas = append(deltas, model.Delta{Old: now[i], New: next})
			}
			now[i] = next
		}
		want := map[string]bool{}
		for _, c := range b.Preview(deltas) {
			want[c.Verb.String()+" "+c.Object] = true
			seen[c.Verb]++
		}
		b.log = nil
		b.Update(deltas)
		if _, err := b.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, op := range b.log {
			if !want[op] && op[:8] != "create 1" { // a chain whose deletion waits may be wanted again, and needs no op
				t.Errorf("round %d: done and not foreseen: %s", round, op)
			}
			delete(want, op)
		}
		for left := range want {
			if left[:8] != "delete 1" && left[:8] != "create 1" {
				t.Errorf("round %d: foreseen and not done: %s", round, left)
			}
		}
	}
	if seen[ledger.Create] < 100 || seen[ledger.Replace] < 20 || seen[ledger.Delete] < 100 {
		t.Errorf("too little happened: %v", seen)
	}
}
