// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"
	"testing"
)

// Rules are counted as they are in the kernel, through changes and restarts.
func TestRulesAreCounted(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		for _, seed := range []uint64{3, 3, 8} { // twice the same world, then another
			s := k.site(seed)
			wrote := s.start().Ops > 0
			total := 0
			for _, r := range s.driver.rules() {
				total += r.Total
				if !wrote && r.Written > 0 {
					t.Errorf("%s %s: %d rules written by a restart", r.Family, r.Table, r.Written)
				}
			}
			if want := strings.Count("\n"+k.save(), "\n-A "); total != want {
				t.Errorf("seed %d: %d rules counted, %d are there", seed, total, want)
			}
			for _, r := range s.driver.rules() {
				if r.Written > 0 {
					t.Errorf("seed %d: written rules are counted twice", seed)
				}
			}
		}
	})
}
