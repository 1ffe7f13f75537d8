// SPDX-License-Identifier: Apache-2.0

// Package growth detects, in tests, work that grows with the square of its input,
// and what falsifies measurements of memory.
package growth

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"
)

// Linear work takes 32 times as long as with a 32nd, a bit more where a large input
// leaves the caches; quadratic work takes 1,024 times as long.
const (
	parts = 32
	most  = 200
	grace = 5 * time.Millisecond
)

// Linear returns an error for each step of a task that takes far longer than 32
// times as long at size n as at n/32; run returns what Timed returned for each.
// The best of three of each step counts, of ten where three are not enough, so that
// garbage collection and a cold cache matter little.
func Linear(n int, run func(n int) (took []time.Duration)) (err error) {
	small, large := run(n/parts), run(n)
	for i := range 9 {
		least(small, run(n/parts))
		least(large, run(n))
		if err = judge(n, small, large); err == nil && i > 0 {
			return nil
		}
	}
	return err
}

// Timed calls do and returns the time this thread worked for it: on Linux CPU time,
// so that what else runs on the machine does not count.
func Timed(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := clock()
	do()
	return clock() - before
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
				i+1, small[i], n/parts, large[i], n, most, grace))
		}
	}
	return err
}

// Raced says whether this program has the race detector, which allocates for itself: bounds
// on memory say nothing then.
func Raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
