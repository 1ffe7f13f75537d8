// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// What is written is read back as the same rule.
func TestRulesComeBack(t *testing.T) {
	for _, f := range model.Families() {
		for _, table := range tables() {
			want := xtables.List(probeRules(f, table, true)...)
			if got := xtables.List(slices.Collect(want.All())...); got != want {
				t.Errorf("%q is read as %q", want, got)
			}
			for r := range want.All() {
				if r.Unparsed != "" {
					t.Errorf("%q is not understood", r)
				}
			}
		}
	}
}
