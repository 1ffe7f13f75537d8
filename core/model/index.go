// SPDX-License-Identifier: Apache-2.0

package model

// Index finds the values of a list by a key that no two of them share. A short list is searched; a map is made at
// the first search of a long one. The list may grow at its end between searches.
type Index[K comparable, V any] struct {
	List []V
	Key  func(*V) K
	at   map[K]int // where in List, of as many as have been indexed
}

const few = 16 // not worth a map

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
	if x.at == nil {
		x.at = make(map[K]int, len(x.List))
	}
	for i := len(x.at); i < len(x.List); i++ {
		x.at[key(&x.List[i])] = i
	}
	if i, ok := x.at[k]; ok {
		return &x.List[i]
	}
	return nil
}

// Unique collects values, each once, in the order in which they were first
// added. The cost of n values is linear in n: lists that come from outside may be
// as long as an object of the API can hold. The zero value is empty.
type Unique[T comparable] struct{ all Index[T, T] }

// Expect makes room for so many values. It may be called before the first is added.
func (u *Unique[T]) Expect(n int) {
	if n > few {
		u.all.List, u.all.at = make([]T, 0, n), make(map[T]int, n)
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
