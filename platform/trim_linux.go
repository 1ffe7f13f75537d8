package platform

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// trim lets go of the pages of the program itself, which the kernel maps in again
// from the file as they are used: most were for the start alone.
func trim() error {
	file, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	spans, err := untouched(smaps, file)
	err = errors.Join(err, smaps.Close())
	for _, s := range spans {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED); errno != 0 {
			err = errors.Join(err, os.NewSyscallError("madvise", errno))
		}
	}
	return err
}
