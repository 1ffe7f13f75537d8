// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// limitMemoryToCgroup has the garbage collector work harder when this process comes
// near the limit of its cgroup, before the kernel throttles or kills it. GOMEMLIMIT
// in the environment takes precedence.
func limitMemoryToCgroup(log *slog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit := cgroupMemory(os.ReadFile); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit / 10 * 9)
		log.Debug("memory limit set from the cgroup", "cgroup", limit, "limit", limit/10*9)
	}
}

// cgroupMemory returns how many bytes the cgroup of this process may have, those
// around it included; math.MaxInt64 when there is no limit. In a container the
// process's own path may lead nowhere, and the root is its own cgroup.
func cgroupMemory(read func(string) ([]byte, error)) int64 {
	limit := int64(math.MaxInt64)
	apply := func(file string) {
		text, err := read(file)
		if err != nil {
			return // another version of cgroups, or none
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 { // else "max"
			limit = min(limit, n)
		}
	}
	own, _ := read("/proc/self/cgroup") // empty without cgroups
	for line := range strings.Lines(string(own)) {
		_, controllers, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, at, _ := strings.Cut(controllers, ":")
		root, files := "/sys/fs/cgroup", []string{"memory.high", "memory.max"}
		switch controllers {
		case "": // version 2
		case "memory":
			root, files = "/sys/fs/cgroup/memory", []string{"memory.limit_in_bytes"}
		default:
			continue
		}
		for at = path.Clean("/" + at); ; at = path.Dir(at) {
			for _, file := range files {
				apply(path.Join(root, at, file))
			}
			if at == "/" {
				break
			}
		}
	}
	return limit
}

// releaseMappedText releases the pages of the program itself, which the kernel maps
// in again from the file on use: most were needed by the start alone.
func releaseMappedText() error {
	file, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	spans, err := unmodified(smaps, file)
	err = errors.Join(err, smaps.Close())
	for _, s := range spans {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED); errno != 0 {
			err = errors.Join(err, os.NewSyscallError("madvise", errno))
		}
	}
	return err
}

// span is a part of the address space.
type span struct{ from, to uintptr }

// unmodified returns the mappings of a file that smaps, as in proc(5), shows to be
// as the file is: read only, without a page that was written before it became so,
// as the loader does with addresses that it has to adjust.
func unmodified(smaps io.Reader, file string) ([]span, error) {
	var spans []span
	var now span // zero in mappings that are of no interest
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		if s, header := mapping(line, file); header {
			now = s
			continue
		}
		if count, is := strings.CutPrefix(line, "Anonymous:"); is && now != (span{}) && strings.TrimSpace(count) == "0 kB" {
			spans = append(spans, now)
		}
	}
	return spans, lines.Err()
}

// mapping reads the line that a mapping begins with: "from-to perms offset device
// inode path". The span is zero unless it is one of the file, and not writable.
func mapping(line, file string) (s span, header bool) {
	f := strings.Fields(line)
	if len(f) < 5 || strings.HasSuffix(f[0], ":") {
		return span{}, false
	}
	from, to, ok := strings.Cut(f[0], "-")
	a, err1 := strconv.ParseUint(from, 16, 64)
	b, err2 := strconv.ParseUint(to, 16, 64)
	if !ok || err1 != nil || err2 != nil {
		return span{}, false
	}
	if len(f) != 6 || f[5] != file || len(f[1]) != 4 || f[1][0] != 'r' || f[1][1] == 'w' || f[1][3] != 'p' || a >= b {
		return span{}, true
	}
	return span{uintptr(a), uintptr(b)}, true
}
