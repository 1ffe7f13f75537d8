// Package growth tells in tests what grows with the square of its input.
package growth

import (
	"errors"
	"fmt"
	"time"
)

// What is linear takes 8 times as long as with an eighth, what is quadratic 64
// times.
const (
	eighth = 8
	most   = 32
	grace  = 5 * time.Millisecond
)

// Linear returns an error for each step of a task that takes far longer than eight
// times as long at size n as at n/8; run returns how long each takes. Both run on
// this machine, and the best of three of each step counts, of ten where three are
// not enough, so that what else runs here matters little.
func Linear(n int, run func(n int) (took []time.Duration)) (err error) {
	small, large := run(n/eighth), run(n)
	for i := range 9 {
		least(small, run(n/eighth))
		least(large, run(n))
		if err = judge(n, small, large); err == nil && i > 0 {
			return nil
		}
	}
	return err
}

func least(all, more []time.Duration) {
	for i := range all {
		all[i] = min(all[i], more[i])
	}
}

func judge(n int, small, large []time.Duration) (err error) {
	for i := range large {
		if large[i] > most*small[i]+grace {
			err = errors.Join(err, fmt.Errorf("step %d takes %s with %d and %s with %d: more than %d times as long and %s",
				i+1, small[i], n/eighth, large[i], n, most, grace))
		}
	}
	return err
}
