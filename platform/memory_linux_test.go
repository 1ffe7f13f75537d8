package platform

import (
	"io/fs"
	"math"
	"testing"
)

func TestCgroupMemory(t *testing.T) {
	const none = math.MaxInt64
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups": {nil, none},
		"no limit":   {map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max\n"}, none},
		"a unit": {map[string]string{
			"/proc/self/cgroup": "0::/system.slice/tandem.service\n",
			"/sys/fs/cgroup/system.slice/tandem.service/memory.high": "3221225472\n",
			"/sys/fs/cgroup/system.slice/tandem.service/memory.max":  "4294967296\n",
			"/sys/fs/cgroup/system.slice/memory.max":                 "max\n",
		}, 3 << 30},
		"a slice around it": {map[string]string{
			"/proc/self/cgroup":                          "0::/kubepods/pod1/c1\n",
			"/sys/fs/cgroup/kubepods/pod1/c1/memory.max": "max\n",
			"/sys/fs/cgroup/kubepods/pod1/memory.max":    "1073741824\n",
		}, 1 << 30},
		"a container that sees itself as the root": {map[string]string{"/proc/self/cgroup": "0::/../..\n", "/sys/fs/cgroup/memory.max": "2147483648"}, 2 << 30},
		"version 1": {map[string]string{
			"/proc/self/cgroup":                                    "5:cpu,cpuacct:/x\n4:memory:/docker/1\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes":          "536870912\n",
			"/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "9223372036854771712\n",
		}, 512 << 20},
		"nonsense": {map[string]string{"/proc/self/cgroup": "\n::\n0:", "/sys/fs/cgroup/memory.max": "-1"}, none},
	} {
		got := cgroupMemory(func(name string) ([]byte, error) {
			if text, ok := c.files[name]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		})
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
