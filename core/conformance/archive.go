package conformance

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
)

// section is one file of an archive and where it stands.
type section struct {
	step int    // from the "N/" in front of the name; 0 without
	name string // without the step
	data []byte
	line int // of its marker, counted from 1
}

// sections splits an archive. Lines of txtar content map one to one to lines of
// the archive, which is how places are found that txtar does not report.
func sections(text []byte) (comment []byte, all []section, err error) {
	a := txtar.Parse(text)
	line := 1 + lines(a.Comment)
	type id struct {
		step int
		name string
	}
	seen := map[id]int{}
	for _, f := range a.Files {
		s := section{name: f.Name, data: f.Data, line: line}
		if number, name, ok := strings.Cut(f.Name, "/"); ok {
			if n, err := strconv.Atoi(number); err == nil {
				s.step, s.name = n, name
			}
		}
		if first := seen[id{s.step, s.name}]; first != 0 {
			return nil, nil, fmt.Errorf("%d: %q is there twice, first in line %d", line, f.Name, first)
		}
		seen[id{s.step, s.name}] = line
		all = append(all, s)
		line += 1 + lines(f.Data)
	}
	return a.Comment, all, nil
}

func lines(b []byte) int { return bytes.Count(b, []byte("\n")) }

// mode tells for which mode a section is a golden.
func (s section) mode() (mode string, ok bool) { return strings.CutPrefix(s.name, "want/") }

// manifest reports whether a section is a file of the manifests' folder.
func (s section) manifest() bool {
	for _, ext := range []string{".yaml", ".yml", ".json"} {
		if strings.HasSuffix(s.name, ext) {
			return !strings.Contains(s.name, "/")
		}
	}
	return false
}
