// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"
)

// Nearest returns the name that was most likely meant by a misspelt one, or "".
// Of equally near ones it is the first in the alphabet. When none is near it is
// the shortest that has it as one of its words: proxy-mode for mode.
func Nearest(name string, names []string) string {
	best, least := "", max(1, len(name)/3)+1
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := distance(strings.ToLower(name), strings.ToLower(n), least); d < least {
			best, least = n, d
		}
	}
	if best != "" {
		return best
	}
	for _, n := range slices.Sorted(slices.Values(names)) {
		if slices.Contains(strings.Split(n, "-"), name) && (best == "" || len(n) < len(best)) {
			best = n
		}
	}
	return best
}

// distance is how many letters must be changed, added or taken away to make b of
// a (Levenshtein), as far as it matters.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
