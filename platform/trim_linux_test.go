package platform

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

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

func TestUntouched(t *testing.T) {
	got, err := untouched(strings.NewReader(smaps), "/usr/bin/tandem")
	want := []span{{0x400000, 0x1128000}, {0x1128000, 0x1f82000}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%x (%v), want %x", got, err, want)
	}
	for _, bad := range []string{"", "x", "g-h r-xp 0 0 0 /usr/bin/tandem\nAnonymous: 0 kB", "2-1 r-xp 0 0 0 /usr/bin/tandem\nAnonymous: 0 kB"} {
		if got, err := untouched(strings.NewReader(bad), "/usr/bin/tandem"); len(got) > 0 || err != nil {
			t.Errorf("%q: %x, %v", bad, got, err)
		}
	}
}

// The program works on, with less of it in memory.
func TestTrim(t *testing.T) {
	before := resident(t)
	if err := trim(); err != nil {
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
