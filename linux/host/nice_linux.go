// SPDX-License-Identifier: Apache-2.0

package host

import "golang.org/x/sys/unix"

// Nice is the nice value of the calling thread, from -20 to 19. On Linux each has its own
// (setpriority(2), "C library/kernel differences"); it counts among the threads of a cgroup.
func Nice() (int, error) {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	return 20 - n, err // the system call has it so
}

// SetNice sets it; a value beyond the range is its end. A smaller one than now takes CAP_SYS_NICE.
func SetNice(n int) error { return unix.Setpriority(unix.PRIO_PROCESS, 0, n) }
