// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
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

const smaps = `00400000-01128000 r-xp 00000000 fe:00 247530                     /usr/bin/tandem
Size:              13472 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
01128000-01f82000 r--p 00d28000 fe:00 247530                     /usr/bin/tandem
Anonymous:             0 kB
01f82000-01f90000 r--p 01b82000 fe:00 247530                     /usr/bin/tandem
Anonymous:             8 kB
01f90000-02010000 rw-p 01b90000 fe:00 247530                     /usr/bin/tandem
Anonymous:             0 kB
02010000-02020000 r--s 00000000 fe:00 247530                     /usr/bin/tandem
Anonymous:             0 kB
02020000-02030000 ---p 00000000 fe:00 247530                     /usr/bin/tandem
Anonymous:             0 kB
c000000000-c004000000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000000000-7f0000001000 r--p 00000000 fe:00 1                  /usr/bin/other
Anonymous:             0 kB
7ffd0000-7ffd1000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
`

func TestUnmodified(t *testing.T) {
	got, err := unmodified(strings.NewReader(smaps), "/usr/bin/tandem")
	want := []span{{0x400000, 0x1128000}, {0x1128000, 0x1f82000}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%x (%v), want %x", got, err, want)
	}
	for _, bad := range []string{"", "x", "g-h r-xp 0 0 0 /usr/bin/tandem\nAnonymous: 0 kB", "2-1 r-xp 0 0 0 /usr/bin/tandem\nAnonymous: 0 kB"} {
		if got, err := unmodified(strings.NewReader(bad), "/usr/bin/tandem"); len(got) > 0 || err != nil {
			t.Errorf("%q: %x, %v", bad, got, err)
		}
	}
}

// The program works on, with less of it in memory.
func TestReleaseMappedText(t *testing.T) {
	before := resident(t)
	if err := releaseMappedText(); err != nil {
		t.Fatal(err)
	}
	if after := resident(t); after >= before {
		t.Errorf("%d kB of files in memory before, %d kB after", before, after)
	}
}

// resident returns how many kB of files are mapped in.
func resident(t *testing.T) (kb int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssFile:" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return kb
		}
	}
	t.Skip("this kernel does not tell RssFile")
	return 0
}

// The use of CPU and memory is that of this process.
func TestUsage(t *testing.T) {
	before := usage()
	for begin := time.Now(); time.Since(begin) < 50*time.Millisecond; {
	}
	after := usage()
	if cpu := after.CPU - before.CPU; cpu <= 0 || cpu > time.Minute || after.Memory < 1<<20 || after.Memory > 1<<40 {
		t.Errorf("%+v, then %+v", before, after)
	}
}
