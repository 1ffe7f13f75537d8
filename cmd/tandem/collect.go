// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"math"
	"os"
	"runtime"
	"runtime/debug"
)

// collectFrom is the memory at which a command that ends after its answer collects garbage
// for the first time: the lists of a cluster of 10,000 Services need less.
const collectFrom = 32 << 20

// collectLate puts off garbage collection until this process has collectFrom bytes; from
// then on it is Go's default. What a user has set stands.
func collectLate() {
	if cmp.Or(os.Getenv("GOGC"), os.Getenv("GOMEMLIMIT")) != "" {
		return
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(collectFrom)
	first := new([2]uintptr) // garbage, which the first collection finds
	runtime.AddCleanup(first, func(percent int) {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(math.MaxInt64)
	}, 100)
}
