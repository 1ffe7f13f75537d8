// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"hash/maphash"
	"iter"
)

// entry is the state of one key. There is one for every object, so it is small:
// the wanted and the installed value are nearly always the same and stored once,
// and the marks share a word.
type entry[K comparable, V any] struct {
	key   K
	value V      // the wanted value; without owners the installed one
	refs  int32  // number of owners
	marks uint32 // the flags below; from posUnit on the position in dirty, counted from 1
}

const (
	installed = 1 << iota // something is installed
	stale                 // and it is not value, but in Ledger.stale
	found                 // found installed, and never wanted since
	inFlight              // planned, and its result not recorded yet
	seen                  // read by the review in progress
	posUnit               // position 1
)

// is reports whether an entry has a mark; none has none.
func (e *entry[K, V]) is(mark uint32) bool { return e != nil && e.marks&mark != 0 }

func (e *entry[K, V]) set(mark uint32, on bool) {
	e.marks &^= mark
	if on {
		e.marks |= mark
	}
}

// queuePos is the entry's position in dirty, counted from 1; 0 when it is not queued.
func (e *entry[K, V]) queuePos() int { return int(e.marks / posUnit) }

func (e *entry[K, V]) setQueuePos(n int) { e.marks = e.marks%posUnit + uint32(n)*posUnit }

// differs reports whether what is installed is not what is wanted.
func (e *entry[K, V]) differs() bool {
	return e.is(stale) || e.is(installed) != (e.refs > 0)
}

// entries are those of all keys. Each stays where it is until it is dropped, and a key is stored
// in it alone: it is found by its hash, in a map without pointers. Where two hashes are the same,
// which is rare, the next free one counts.
type entries[K comparable, V any] struct {
	hash   func(K) uint32
	places map[uint32]uint32 // by hash
	blocks []*[blockSize]entry[K, V]
	free   []uint32 // places; the entries there are zero
}

const blockSize = 256

func newEntries[K comparable, V any]() entries[K, V] {
	seed := maphash.MakeSeed()
	return entries[K, V]{
		hash:   func(key K) uint32 { return uint32(maphash.Comparable(seed, key)) },
		places: map[uint32]uint32{},
	}
}

func (es *entries[K, V]) len() int { return len(es.places) }

func (es *entries[K, V]) at(place uint32) *entry[K, V] {
	return &es.blocks[place/blockSize][place%blockSize]
}

// find returns the entry of a key; nil for none.
func (es *entries[K, V]) find(key K) *entry[K, V] {
	_, e := es.search(key)
	return e
}

// search returns what counts as the hash of a key, and its entry. Without one it is what will.
func (es *entries[K, V]) search(key K) (hash uint32, e *entry[K, V]) {
	for hash = es.hash(key); ; hash++ {
		place, taken := es.places[hash]
		if !taken {
			return hash, nil
		}
		if e := es.at(place); e.key == key {
			return hash, e
		}
	}
}

// add returns the entry of a key, a new one if there is none.
func (es *entries[K, V]) add(key K) *entry[K, V] {
	hash, e := es.search(key)
	if e != nil {
		return e
	}
	if len(es.free) == 0 {
		es.grow()
	}
	last := len(es.free) - 1
	place := es.free[last]
	es.free = es.free[:last]
	es.places[hash] = place
	e = es.at(place)
	e.key = key
	return e
}

func (es *entries[K, V]) grow() {
	first := uint32(len(es.blocks) * blockSize)
	es.blocks = append(es.blocks, new([blockSize]entry[K, V]))
	for i := range uint32(blockSize) {
		es.free = append(es.free, first+blockSize-1-i)
	}
}

// drop drops an entry: its place is that of another key later.
func (es *entries[K, V]) drop(e *entry[K, V]) {
	hash, _ := es.search(e.key)
	es.free = append(es.free, es.places[hash])
	delete(es.places, hash)
	*e = entry[K, V]{}
	for hash++; ; hash++ { // those that were found on the way past it
		place, taken := es.places[hash]
		if !taken {
			return
		}
		delete(es.places, hash)
		counts, _ := es.search(es.at(place).key)
		es.places[counts] = place
	}
}

// all iterates over the entries, and zero ones in between. Those that are added meanwhile may be
// left out.
func (es *entries[K, V]) all() iter.Seq[*entry[K, V]] {
	return func(yield func(*entry[K, V]) bool) {
		for _, block := range es.blocks {
			for i := range block {
				if !yield(&block[i]) {
					return
				}
			}
		}
	}
}
