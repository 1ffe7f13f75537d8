// SPDX-License-Identifier: Apache-2.0

package model

import (
	"hash/maphash"
	"math/bits"
)

// Index finds the values of a list by a key that no two of them share. A short list is searched; a table is made at
// the first search of a long one. The list may grow at its end between searches.
type Index[K comparable, V any] struct {
	List []V
	Key  func(*V) K

	// table has one more than the place in List of the first indexed ones, each in the first place from its hash on that
	// was free; at least half of it is free. A map would have the keys once more.
	table   []uint32
	indexed int
	seed    maphash.Seed
}

const few = 16 // not worth a table

// Find returns the value with a key, which is most likely at a place; nil when there is none. It is valid until the
// list grows.
func (x *Index[K, V]) Find(k K, likely int) *V { return x.find(x.Key, k, likely) }

func (x *Index[K, V]) find(key func(*V) K, k K, likely int) *V {
	if likely < len(x.List) && key(&x.List[likely]) == k {
		return &x.List[likely]
	}
	if len(x.List) <= few {
		for i := range x.List {
			if key(&x.List[i]) == k {
				return &x.List[i]
			}
		}
		return nil
	}
	if 2*len(x.List) > len(x.table) {
		x.reserve(max(len(x.List), cap(x.List)))
	}
	for ; x.indexed < len(x.List); x.indexed++ {
		*x.place(key, key(&x.List[x.indexed])) = uint32(x.indexed) + 1
	}
	if at := *x.place(key, k); at > 0 {
		return &x.List[at-1]
	}
	return nil
}

// place is where the table has a key, or would have it.
func (x *Index[K, V]) place(key func(*V) K, k K) *uint32 {
	last := uint64(len(x.table) - 1)
	for i := maphash.Comparable(x.seed, k) & last; ; i = (i + 1) & last {
		if at := &x.table[i]; *at == 0 || key(&x.List[*at-1]) == k {
			return at
		}
	}
}

// reserve makes a new table with room for so many.
func (x *Index[K, V]) reserve(n int) {
	if x.table == nil {
		x.seed = maphash.MakeSeed()
	}
	x.table, x.indexed = make([]uint32, 1<<bits.Len(uint(2*n))), 0
}

// Unique collects values, each once, in the order in which they were first
// added. The cost of n values is linear in n: lists that come from outside may be
// as long as an object of the API can hold. The zero value is empty.
type Unique[T comparable] struct{ all Index[T, T] }

// Expect makes room for so many values. It must be called before the first is added.
func (u *Unique[T]) Expect(n int) {
	if n > few {
		u.all.List = make([]T, 0, n)
		u.all.reserve(n)
	}
}

// Add adds a value and reports whether it is new.
func (u *Unique[T]) Add(v T) bool {
	if u.Has(v) {
		return false
	}
	u.all.List = append(u.all.List, v)
	return true
}

// Has reports whether a value was added.
func (u *Unique[T]) Has(v T) bool {
	return u.all.find(func(v *T) T { return *v }, v, len(u.all.List)) != nil
}

// List returns the values. It is nil when there are none.
func (u *Unique[T]) List() []T { return u.all.List }
