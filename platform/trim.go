package platform

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// span is a part of the address space.
type span struct{ from, to uintptr }

// untouched returns the mappings of a file that smaps, as in proc(5), shows to be
// as the file is: read only, without a page that was written before it became so,
// as the loader does with addresses that it has to adjust.
func untouched(smaps io.Reader, file string) ([]span, error) {
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
