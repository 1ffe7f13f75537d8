package platform

import (
	"log/slog"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory has the garbage collector work harder when this process comes near
// the limit of its cgroup, before the kernel slows it down or ends it. GOMEMLIMIT in
// the environment goes before.
func limitMemory(log *slog.Logger) {
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
	look := func(file string) {
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
				look(path.Join(root, at, file))
			}
			if at == "/" {
				break
			}
		}
	}
	return limit
}
