// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// Ops that are too large for one transaction are applied in parts. Their order (Rank)
// makes every prefix of them consistent, except for ranges of addresses: deleted and
// added ranges may overlap, and the kernel rejects overlapping ranges.

// gathered returns the indices of ops in an order that keeps ranges that may overlap
// together, deletions first. If ranges of the same frontend are added, deletions come
// as early as those; else they stay behind the ops that need them. Those that are added after deletions
// do not overlap these, and stay where they are: see ledger.Plan.
func gathered(ops []Op) (order []int) {
	type run struct {
		begin   int
		deletes bool
	}
	runs := map[Key]run{} // the last one of each group
	at := make([]int, len(ops))
	order = make([]int, len(ops))
	for i, o := range ops {
		order[i], at[i] = i, i
		group, ok := overlapping(o)
		if !ok {
			continue
		}
		r, known := runs[group]
		if deletes := o.Verb == ledger.Delete; !known || r.deletes && !deletes {
			r = run{i, deletes}
		} else {
			r.deletes = deletes
		}
		runs[group] = r
		at[i] = r.begin
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(at[a], at[b]), cmp.Compare(stays(ops[a]), stays(ops[b])), cmp.Compare(a, b))
	})
	return order
}

func stays(o Op) int {
	if o.Verb == ledger.Delete {
		return 0
	}
	return 1
}

// overlapping returns the group in which ranges may overlap: the set, and the
// frontend if that is in its keys. It is false for ops that are no range.
func overlapping(o Op) (group Key, ok bool) {
	if _, ok = o.Key.Range(); !ok {
		return group, false
	}
	group = Key{Family: o.Key.Family, Set: o.Key.Set}
	if o.Key.Set.rangeBehind() {
		group.Proto, group.Port, group.Addr = o.Key.Proto, o.Key.Port, o.Key.Addr
	}
	return group, true
}

// cut returns where gathered ops are split: as near to the middle as possible without
// separating ranges that may overlap. If there is no such place, those are split:
// some ranges may then be missing for a moment.
func cut(ops []Op) int {
	half := len(ops) / 2
	for off := range len(ops) - half {
		for _, i := range [...]int{max(half-off, 1), half + off} {
			before, ranges := overlapping(ops[i-1])
			behind, _ := overlapping(ops[i])
			if !ranges || before != behind {
				return i
			}
		}
	}
	return half
}
