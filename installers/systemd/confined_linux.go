// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// confined calls f on a thread of its own without the capabilities that override
// permissions of files: the kernel's own answer, with access control lists, symbolic
// links and remote file systems.
func confined(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, and its privileges.
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		if err := unix.Capget(&header, &sets[0]); err != nil {
			done <- &privilegeError{err}
			return
		}
		sets[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		if err := unix.Capset(&header, &sets[0]); err != nil {
			done <- &privilegeError{err}
			return
		}
		done <- f()
	}()
	return <-done
}
