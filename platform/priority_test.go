// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"runtime"
	"strconv"
	"testing"
)

// A machine of few processors has more threads, but as many as the user says where they do.
func TestThreadsOfFewProcessors(t *testing.T) {
	n := runtime.NumCPU()
	if n >= leastThreads {
		t.Skipf("skipped: this machine has %d processors", n)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
	t.Setenv("GOMAXPROCS", strconv.Itoa(n))
	if addThreads(); runtime.GOMAXPROCS(0) != n {
		t.Errorf("GOMAXPROCS=%d: %d threads", n, runtime.GOMAXPROCS(0))
	}
	t.Setenv("GOMAXPROCS", "")
	if addThreads(); runtime.GOMAXPROCS(0) != leastThreads {
		t.Errorf("%d threads on %d processors", runtime.GOMAXPROCS(0), n)
	}
	runtime.GOMAXPROCS(1)
	if addThreads(); n > 1 && runtime.GOMAXPROCS(0) != 1 { // a limit
		t.Errorf("%d threads in place of 1", runtime.GOMAXPROCS(0))
	}
}
