// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// Unique collects values, each once, in the order in which they were first
// added. The cost of n values is linear in n: lists that come from outside may be
// as long as an object of the API can hold. The zero value is empty.
type Unique[T comparable] struct {
	list  []T
	known map[T]struct{} // of list, once that is long
}

// Add adds a value and reports whether it is new.
func (u *Unique[T]) Add(v T) bool {
	const few = 16 // not worth a map
	if u.known == nil {
		if slices.Contains(u.list, v) {
			return false
		}
		u.list = append(u.list, v)
		if len(u.list) > few {
			u.known = make(map[T]struct{}, 2*few)
			for _, o := range u.list {
				u.known[o] = struct{}{}
			}
		}
		return true
	}
	if _, again := u.known[v]; again {
		return false
	}
	u.known[v] = struct{}{}
	u.list = append(u.list, v)
	return true
}

// List returns the values. It is nil when there are none.
func (u *Unique[T]) List() []T { return u.list }
