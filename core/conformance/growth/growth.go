// Package growth tells in tests what grows with the square of its input.
package growth

import (
	"fmt"
	"time"
)

// Linear returns an error where a task of size n takes far longer than eight times
// as long as one of n/8. Both run on this machine, and the best of three of each
// counts, so that what else runs here matters little: what is linear takes 8 times
// as long, what is quadratic 64 times; 32 are too many.
func Linear(n int, run func(n int) (took time.Duration)) error {
	const eighth, slack, grace = 8, 4, 5 * time.Millisecond
	best := func(n int) time.Duration { return min(run(n), run(n), run(n)) }
	small, large := best(n/eighth), best(n)
	if large > eighth*slack*small+grace {
		return fmt.Errorf("%d take %s, %d take %s: more than %d times as long and %s", n/eighth, small, n, large, eighth*slack, grace)
	}
	return nil
}
