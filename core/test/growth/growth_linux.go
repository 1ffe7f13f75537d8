// SPDX-License-Identifier: Apache-2.0

package growth

import (
	"syscall"
	"time"
	"unsafe"
)

const threadCPUTime = 3 // CLOCK_THREAD_CPUTIME_ID, clock_gettime(2)

// clock returns the CPU time of this thread, to which others add nothing. (getrusage
// would count in ticks on some kernels.)
func clock() time.Duration {
	var t syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadCPUTime, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic("clock_gettime: " + errno.Error())
	}
	return time.Duration(t.Nano())
}
