package relay

import "syscall"

// maxDescriptors is how many the process may have open. Go has raised the limit
// as far as it may at the start.
func maxDescriptors() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0
	}
	return int(min(l.Cur, 1<<30))
}
