// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"slices"

	"github.com/tandem-proxy/tandem/core/ledger"
)

// What is too large for one transaction is done in parts. The order of ops is such
// that any part from the first on makes sense (Rank), but for ranges of addresses:
// those that go and those that come may overlap, and the kernel takes no such
// ranges at a time.

// gathered returns the indices of ops in an order in which ranges that may overlap
// are together, those that go first. Where others of the frontend come, they go as
// early as those; else they stay behind what needs them.
func gathered(ops []Op) (order []int) {
	begins := map[Key]int{} // where ranges of a group are
	at := make([]int, len(ops))
	order = make([]int, len(ops))
	for i, o := range ops {
		order[i], at[i] = i, i
		group, ok := overlapping(o)
		if !ok {
			continue
		}
		if _, known := begins[group]; !known {
			begins[group] = i
		}
		at[i] = begins[group]
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

// overlapping returns what ranges have in common that may overlap: the set, and the
// frontend where that is in its keys. It is false for what is no range.
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

// cut returns where ops that are gathered are cut in two: as near to the middle as
// can be without separating ranges that may overlap. Where there is nothing else,
// these are cut: some may be missing for a moment then.
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
