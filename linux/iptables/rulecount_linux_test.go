// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// Rules are counted as they are in the kernel, through changes and restarts.
func TestRulesAreCounted(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		for _, seed := range []uint64{3, 3, 8} { // twice the same world, then another
			s := k.site(seed)
			wrote := s.start().Ops > 0
			total := 0
			s.driver.Rules(func(table string, f model.Family, n, written int) {
				total += n
				if !wrote && written > 0 {
					t.Errorf("%s %s: %d rules written by a restart", f, table, written)
				}
			})
			if want := strings.Count("\n"+k.save(), "\n-A "); total != want {
				t.Errorf("seed %d: %d rules counted, %d are there", seed, total, want)
			}
			s.driver.Rules(func(_ string, _ model.Family, _, written int) {
				if written > 0 {
					t.Errorf("seed %d: written rules are counted twice", seed)
				}
			})
		}
	})
}
