// SPDX-License-Identifier: Apache-2.0

package growth

import (
	"testing"
	"time"
)

func TestLinear(t *testing.T) {
	run := func(work func(n int) int) func(n int) []time.Duration {
		return func(n int) []time.Duration {
			return []time.Duration{Timed(func() {
				if spin(work(n)) < 0 {
					t.Error("impossible")
				}
			})}
		}
	}
	if err := Linear(8_000, run(func(n int) int { return 1_000 * n })); err != nil {
		t.Errorf("linear: %v", err)
	}
	if err := Linear(8_000, run(func(n int) int { return n * n })); err == nil {
		t.Error("quadratic work passes")
	}
}

//go:noinline
func spin(n int) (sum int) {
	for i := range n {
		sum ^= i
	}
	return sum
}
