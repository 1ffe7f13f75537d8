// SPDX-License-Identifier: Apache-2.0

package ledger

// Wanted returns the wanted object of a key, and how many owners it has; no owners
// is that it is not wanted.
func (l *Ledger[K, V]) Wanted(key K) (v V, owners int) {
	e := l.entries[key]
	if e == nil || e.refs == 0 {
		return v, 0
	}
	return e.value, int(e.refs)
}
