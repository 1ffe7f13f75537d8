// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"os"
	"runtime"
)

// Where processors are few, changes come before answers and the garbage that these make.

// giveWay has the calling goroutine give way to changes until end is called on it: its thread has a
// low priority. One whose priority cannot be restored, which takes a privilege, serves no other goroutine
// and ends with this one.
func (p *Proxy) giveWay() (end func()) {
	runtime.LockOSThread()
	restore, err := p.system.lower()
	if err != nil {
		p.log.Debug("lowering the priority of an answer failed", "err", err)
		return runtime.UnlockOSThread
	}
	return func() {
		if restore() == nil {
			runtime.UnlockOSThread()
		}
	}
}

// leastThreads is how many threads run Go code on a machine of fewer processors. With fewer of them the collector
// has none of its own, and runs before goroutines that are ready (Go's runtime/mgcpacer.go,
// dedicatedMarkWorkersNeeded; runtime/proc.go, findRunnable).
const leastThreads = 4

// addThreads sees to leastThreads, unless GOMAXPROCS or a limit of the cgroup says otherwise. Go takes a limit
// of less than two processors for two (runtime/cgroup_linux.go, defaultGOMAXPROCS), so that on two it is not
// noticed here: it bounds the time that all threads take, however many they are. Limits that change later are
// not followed any more.
func addThreads() {
	if n := runtime.NumCPU(); n < leastThreads && runtime.GOMAXPROCS(0) == n && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(leastThreads)
	}
}
