// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"slices"
)

// Shares divides room among namespaces, given what each has: those with less than an equal share keep
// all of it, and what they leave is shared by the others (max-min fairness).
func Shares(has map[string]int, room int) map[string]int {
	fewest := slices.SortedFunc(maps.Keys(has), func(a, b string) int {
		return cmp.Or(cmp.Compare(has[a], has[b]), cmp.Compare(a, b))
	})
	shares := make(map[string]int, len(has))
	for i, namespace := range fewest {
		shares[namespace] = min(has[namespace], room/(len(fewest)-i))
		room -= shares[namespace]
	}
	return shares
}

// Largest returns the namespace that has the most: the one that asks, where no other has more.
func Largest(has map[string]int, asks string) string {
	most := asks
	for namespace, n := range has {
		if n > has[most] {
			most = namespace
		}
	}
	return most
}
