// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// No garbage is collected before there is much of it; afterwards the settings are Go's.
func TestCollectLate(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) }()
	runtime.GC()
	collectLate()
	if got := debug.SetMemoryLimit(-1); got != collectFrom {
		t.Fatalf("the limit is %d", got)
	}
	var kept [][]byte
	for begin := time.Now(); debug.SetMemoryLimit(-1) == collectFrom; time.Sleep(time.Millisecond) {
		if kept = append(kept, make([]byte, 1<<20)); len(kept) > 4*collectFrom>>20 && time.Since(begin) > time.Minute {
			t.Fatalf("with %d MiB nothing was collected", len(kept))
		}
	}
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("after the first collection GOGC is %d", got)
	}
	t.Setenv("GOGC", "50")
	if collectLate(); debug.SetMemoryLimit(-1) == collectFrom {
		t.Error("what the user has set does not stand")
	}
	runtime.KeepAlive(kept)
}
