// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// Keys are found whatever others have their hash, or one that follows it, and also after those were dropped.
func TestEntriesOfOneHash(t *testing.T) {
	for _, hashes := range []uint32{1, 3, 1 << 20} {
		random := rand.New(rand.NewPCG(1, uint64(hashes)))
		es := newEntries[uint32, uint32]()
		es.hash = func(key uint32) uint32 { return ^uint32(0) - key%hashes } // from the last one on it goes on at 0
		want := map[uint32]*entry[uint32, uint32]{}
		most := 0
		for range 2_000 {
			key := random.Uint32N(3 * blockSize / 2)
			e := es.find(key)
			if e != want[key] {
				t.Fatalf("key %d of %d hashes: %p, want %p", key, hashes, e, want[key])
			}
			switch {
			case e == nil:
				want[key] = es.add(key)
			case random.IntN(2) == 0:
				es.drop(e)
				delete(want, key)
			case es.add(key) != e || e.key != key:
				t.Fatalf("key %d was added twice", key)
			}
			most = max(most, len(want))
		}
		got := map[uint32]*entry[uint32, uint32]{}
		for e := range es.all() {
			if want[e.key] == e {
				got[e.key] = e
			} else if *e != (entry[uint32, uint32]{}) {
				t.Errorf("what was dropped is left: %+v", *e)
			}
		}
		if !maps.Equal(got, want) || es.len() != len(want) || len(es.blocks) != (most+blockSize-1)/blockSize {
			t.Errorf("%d entries, %d of all, %d blocks, want %d; there were at most %d", es.len(), len(got), len(es.blocks), len(want), most)
		}
	}
}
