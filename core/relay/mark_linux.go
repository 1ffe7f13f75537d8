package relay

import (
	"os"
	"syscall"
)

// setMark has all packets of a socket carry a mark; 0 is none.
func setMark(fd int, mark uint32) error {
	if mark == 0 {
		return nil
	}
	return os.NewSyscallError("setsockopt SO_MARK", set(fd, syscall.SOL_SOCKET, syscall.SO_MARK, int32(mark)))
}
