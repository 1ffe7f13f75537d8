// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// withGolden returns an archive in which the golden of a mode in a step is want.
// All other bytes are as before. A new golden goes to the end, where goldens are
// kept in the order of step and mode; an empty one leaves no section.
func withGolden(text []byte, step int, mode, want string) ([]byte, error) {
	if want != "" && !strings.HasSuffix(want, "\n") {
		want += "\n"
	}
	if _, inner, _ := sections([]byte(want)); len(inner) > 0 {
		return nil, fmt.Errorf("the golden of %s has a line that looks like a file marker of the archive", mode)
	}
	_, all, err := sections(text)
	if err != nil {
		return nil, err
	}
	name := "want/" + mode
	if step > 0 {
		name = strconv.Itoa(step) + "/" + name
	}
	body := []byte("-- " + name + " --\n" + want)
	if want == "" {
		body = nil
	}
	from, to := len(text), len(text)
	for _, s := range all {
		m, golden := s.mode()
		start := lineOffset(text, s.line)
		if golden && s.step == step && m == mode {
			from, to = start, lineOffset(text, s.line+1+lines(s.data))
			break
		}
		if golden && from == len(text) && (s.step > step || s.step == step && m > mode) {
			from, to = start, start // unless it comes later
		}
	}
	if from > 0 && text[from-1] != '\n' && body != nil {
		body = append([]byte("\n"), body...)
	}
	return slices.Concat(text[:from], body, text[to:]), nil
}

// lineOffset returns where a line, counted from 1, starts; past the end it is
// the end.
func lineOffset(text []byte, line int) int {
	offset := 0
	for range line - 1 {
		i := bytes.IndexByte(text[offset:], '\n')
		if i < 0 {
			return len(text)
		}
		offset += i + 1
	}
	return offset
}

// update writes a golden into the file of a scenario. The file is read again and
// replaced as a whole, so that suites of other modes may write to it, too, one after
// the other (go test -p 1).
func update(file string, step int, mode, want string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := withGolden(text, step, mode, want)
	if err != nil || bytes.Equal(changed, text) {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".golden-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails once it is renamed, as it should
	_, err = tmp.Write(changed)
	if mode := tmp.Chmod(0o644); err == nil {
		err = mode
	}
	if closed := tmp.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}
