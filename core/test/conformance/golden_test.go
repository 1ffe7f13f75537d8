// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"path/filepath"
	"testing"
)

func TestGoldensLeaveTheRestAlone(t *testing.T) {
	const text = "# t\r\n\n--  odd name.yaml --\nx\n-- want/b --\nold b\n-- 1/packets --\n\n# end without newline"
	for _, test := range []struct {
		name  string
		text  string
		step  int
		mode  string
		want  string
		after string
	}{
		{"replace", text, 0, "b", "new\nlines\n", "# t\r\n\n--  odd name.yaml --\nx\n-- want/b --\nnew\nlines\n-- 1/packets --\n\n# end without newline"},
		{"remove", text, 0, "b", "", "# t\r\n\n--  odd name.yaml --\nx\n-- 1/packets --\n\n# end without newline"},
		{"before another", text, 0, "a", "a\n", "# t\r\n\n--  odd name.yaml --\nx\n-- want/a --\na\n-- want/b --\nold b\n-- 1/packets --\n\n# end without newline"},
		{"replace, out of order", "-- want/b --\nb\n-- want/a --\nold\n", 0, "a", "a\n", "-- want/b --\nb\n-- want/a --\na\n"},
		{"append", text, 1, "a", "a", text + "\n-- 1/want/a --\na\n"},
		{"nothing there, nothing wanted", text, 1, "a", "", text},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := withGolden([]byte(test.text), test.step, test.mode, test.want)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.after {
				t.Errorf("got\n%q\nwant\n%q", got, test.after)
			}
			again, err := withGolden(got, test.step, test.mode, test.want)
			if err != nil || string(again) != string(got) {
				t.Errorf("writing the same again changed it (%v):\n%q", err, again)
			}
		})
	}
	if _, err := withGolden([]byte(text), 0, "b", "-- x.yaml --\n"); err == nil {
		t.Error("a golden with a file marker in it was accepted")
	}
}

func TestUpdateWritesTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.txtar")
	if err := os.WriteFile(file, []byte("# t\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"b", "a"} {
		if err := update(file, 0, mode, mode+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := os.ReadFile(file)
	if want := "# t\n-- want/a --\na\n-- want/b --\nb\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".golden-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
