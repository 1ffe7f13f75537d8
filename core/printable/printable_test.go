// SPDX-License-Identifier: Apache-2.0

package printable_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-proxy/tandem/core/printable"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain, Ünïcödé 世界":         "plain, Ünïcödé 世界",
		"\x1b[31m\nforged":          `\x1b[31m\x0aforged`,
		"a\u202eb\u2066c\u200bd":    `a\u202eb\u2066c\u200bd`,
		"\u0085\u009b31m\x7f\ufeff": `\x85\x9b31m\x7f\ufeff`,
		"\xff\xfe":                  `\xff\xfe`,
		"\ufffd":                    "\ufffd",
		"\U000e0001":                `\U000e0001`,
	} {
		if got := printable.Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := printable.Lines("a\n\tb\r\x1b"); got != "a\n\tb"+`\x0d\x1b` {
		t.Errorf("lines: %q", got)
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\u202e\n\x1b\xff")
	f.Fuzz(func(t *testing.T, s string) {
		text := printable.Text(s)
		if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != ' ' && !unicode.IsPrint(r) }) {
			t.Errorf("%q: %q", s, text)
		}
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var before, after string
		safe := printable.JSON(b)
		if json.Unmarshal(b, &before) != nil || json.Unmarshal(safe, &after) != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%q: %s means %q", before, safe, after)
		}
		if string(safe) != printable.Text(string(safe)) {
			t.Errorf("%q: %q", s, safe)
		}
	})
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		text  string
		width int
		want  string
	}{{"", 1, ""}, {"a", 1, "a"}, {"ab", 1, "…"}, {"grün", 4, "grün"}, {"grüner", 4, "grü…"}, {"a\xff\xffb", 3, "a\xff…"}} {
		if got := printable.Cut(tt.text, tt.width); got != tt.want {
			t.Errorf("%q, %d: %q, want %q", tt.text, tt.width, got, tt.want)
		}
	}
}

func TestCutBytes(t *testing.T) {
	for _, tt := range []struct {
		text string
		most int
		want string
	}{{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "…"}, {"grün", 5, "grün"}, {"grüner", 6, "gr…"}, {"grüner", 7, "grüner"}, {"grüne ", 7, "grüne "}, {"grüner Tee", 7, "grü…"}} {
		if got := printable.CutBytes(tt.text, tt.most); got != tt.want || len(got) > tt.most {
			t.Errorf("%q, %d: %q, want %q", tt.text, tt.most, got, tt.want)
		}
	}
}

func TestList(t *testing.T) {
	all := []string{"a", "b", "c"}
	for most, want := range []string{" and 3 more", "a and 2 more", "a, b and 1 more", "a, b, c", "a, b, c"} {
		if got := printable.List(all, most); got != want {
			t.Errorf("%d: %q, want %q", most, got, want)
		}
	}
	if got := printable.First(all[:1], 1000); got != "a and 999 more" {
		t.Error(got)
	}
}

func TestCount(t *testing.T) {
	for n, want := range []string{"0 syncs", "1 sync", "2 syncs"} {
		if got := printable.Count(n, "sync"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
