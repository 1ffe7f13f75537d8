// SPDX-License-Identifier: Apache-2.0

package nft

// Count bounds the counters in elements of some sets: those of frontends and endpoints.
// It comes before anything else.
func (d *Driver) Count(most int, sets ...*Set) {
	b := &d.budget
	b.most, b.counts, b.denied = most, map[*Set]bool{}, map[Key]struct{}{}
	for _, s := range sets {
		b.counts[s] = true
	}
}

// Uncounted reports whether there are elements without a counter, for lack of room.
func (d *Driver) Uncounted() bool {
	d.budget.mu.Lock()
	defer d.budget.mu.Unlock()
	return len(d.budget.denied) > 0
}

// asWanted passes single elements that were read, without a counter for lack of room, as
// those that have one.
func (d *Driver) asWanted(found func(Key, Value)) func(Key, Value) {
	if d.budget.most == 0 {
		return found
	}
	return func(k Key, v Value) {
		if !counts(v) && d.budget.lacks(k) {
			v = counted(v)
		}
		found(k, v)
	}
}
