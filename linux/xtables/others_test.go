// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"fmt"
	"slices"
	"testing"
)

// Rules of others beyond the limit are counted: a trace hides none in silence.
func TestRulesAheadBeyondTheLimit(t *testing.T) {
	var all []string
	for i := range maxAhead + 2 {
		if got := firstAhead(slices.Clone(all)); i <= maxAhead && !slices.Equal(got, all) {
			t.Errorf("%d rules: %q", i, got)
		}
		all = append(all, fmt.Sprint("rule ", i))
	}
	for n, last := range map[int]string{
		maxAhead + 1: "and 1 more rule of other programs before tandem's: iptables-save shows all",
		maxAhead + 2: "and 2 more rules of other programs before tandem's: iptables-save shows all",
	} {
		if got := firstAhead(slices.Clone(all[:n])); len(got) != maxAhead+1 || got[maxAhead] != last {
			t.Errorf("%d rules: %q", n, got)
		}
	}
}
