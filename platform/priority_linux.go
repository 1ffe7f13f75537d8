// SPDX-License-Identifier: Apache-2.0

package platform

import "golang.org/x/sys/unix"

// lowering is by how much answers are nicer than changes: they have a tenth of the weight
// (kernel/sched/core.c, sched_prio_to_weight). More would not help, and some of what they hold others wait for.
const lowering = 10

// lowerThread makes the calling thread nicer. On Linux each thread has its own nice value
// (setpriority(2), "C library/kernel differences").
func lowerThread() (restore func() error, err error) {
	const least = 19
	now, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return nil, err
	}
	nice := 20 - now // the system call returns it so
	return func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, nice) }, unix.Setpriority(unix.PRIO_PROCESS, 0, min(nice+lowering, least))
}
