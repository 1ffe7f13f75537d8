// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Guests that run at once have this much memory together, in MiB, and each has a
// processor of the host's. An engine takes engineMemory more than the guest has, most of
// it for QEMU's translated code (tb-size).
const memoryLimit, memoryUnit, engineMemory = 6144, 512, 384

// cache is the folder of ci/setup/guest.
func cache() (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "tandem", "guest"), err
}

// take waits for a processor and for memory in MiB. They are locks on files, so
// the kernel gives back what a process that is killed has taken.
func take(ctx context.Context, memory int) (release func(), err error) {
	if memory > memoryLimit {
		return nil, fmt.Errorf("%d MiB are more than all guests may have, %d MiB", memory, memoryLimit)
	}
	dir, err := cache()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "slots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for {
		held, err := tryTake(dir, map[string]struct{ want, all int }{
			"processor": {1, runtime.NumCPU()},
			"memory":    {(memory + memoryUnit - 1) / memoryUnit, memoryLimit / memoryUnit},
		})
		if err != nil || held != nil {
			return func() { held.close() }, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting until other guests end: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// locks are files that this process has locked.
type locks []*os.File

func (l locks) close() {
	for _, f := range l {
		_ = f.Close() // it releases the lock in any case
	}
}

// tryTake takes the wanted number of each kind, or nothing.
func tryTake(dir string, kinds map[string]struct{ want, all int }) (held locks, err error) {
	defer func() {
		if err != nil {
			held.close()
			held = nil
		}
	}()
	for kind, k := range kinds {
		for i := 0; i < k.all && k.want > 0; i++ {
			f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%s-%d", kind, i)), os.O_CREATE|os.O_RDWR, 0o644)
			if err != nil {
				return held, err
			}
			switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
			case err == nil:
				held, k.want = append(held, f), k.want-1
			case errors.Is(err, unix.EWOULDBLOCK):
				_ = f.Close()
			default:
				return append(held, f), fmt.Errorf("%s: %w", f.Name(), err)
			}
		}
		if k.want > 0 {
			held.close()
			return nil, nil
		}
	}
	return held, nil
}
