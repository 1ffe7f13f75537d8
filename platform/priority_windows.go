// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"fmt"

	"golang.org/x/sys/windows"
)

// The priorities of threads (winbase.h). Threads of the Go runtime have the normal one.
const (
	threadPriorityLowest = -2
	threadPriorityNormal = 0
)

// lower gives the calling thread the lowest priority.
func lower() (restore func() error, err error) {
	set := func(to int) error {
		proc := windows.NewLazySystemDLL("kernel32.dll").NewProc("SetThreadPriority")
		if ok, _, err := proc.Call(uintptr(windows.CurrentThread()), uintptr(to)); ok == 0 {
			return fmt.Errorf("SetThreadPriority: %w", err)
		}
		return nil
	}
	return func() error { return set(threadPriorityNormal) }, set(threadPriorityLowest)
}
