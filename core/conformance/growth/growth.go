// Package growth tells in tests what grows with the square of its input.
package growth

import (
	"errors"
	"fmt"
	"time"
)

// Linear returns an error for each step of a task that takes far longer than eight
// times as long at size n as at n/8; run returns how long each takes. Both run on
// this machine, and the best of three of each step counts, so that what else runs
// here matters little: what is linear takes 8 times as long, what is quadratic 64
// times; 32 are too many.
func Linear(n int, run func(n int) (took []time.Duration)) (err error) {
	const eighth, slack, grace = 8, 4, 5 * time.Millisecond
	best := func(n int) []time.Duration {
		all := run(n)
		for range 2 {
			for i, took := range run(n) {
				all[i] = min(all[i], took)
			}
		}
		return all
	}
	small, large := best(n/eighth), best(n)
	for i := range large {
		if large[i] > eighth*slack*small[i]+grace {
			err = errors.Join(err, fmt.Errorf("step %d takes %s with %d and %s with %d: more than %d times as long and %s",
				i+1, small[i], n/eighth, large[i], n, eighth*slack, grace))
		}
	}
	return err
}
