// SPDX-License-Identifier: Apache-2.0

// Package printable makes untrusted texts safe to show: names, messages and errors
// from the API server, manifests, the kernel or HNS. Characters that could forge a
// line, control a terminal or change the direction of text become escapes. It is
// applied where texts leave the process: logs, tables, Events, the status of the
// service manager, standard error.
package printable

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s on one line, with what does not print as escapes: control
// characters as \x1b, others, such as those for bidirectional text, as \u202e,
// bytes that are not UTF-8 as \xff.
func Text(s string) string { return escape(s, "") }

// Lines is Text for a text of several lines.
func Lines(s string) string { return escape(s, "\n\t") }

// plain reports whether a character is shown as it is.
func plain(r rune) bool { return r == ' ' || unicode.IsPrint(r) }

func escape(s, keep string) string {
	if !hasEscapes(s, keep) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case plain(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

func hasEscapes(s, keep string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' { // mostly there is none
			return hasEscapesFrom(s[i:], keep)
		}
	}
	return false
}

func hasEscapesFrom(s, keep string) bool {
	for _, r := range s {
		if r == utf8.RuneError || !plain(r) && !strings.ContainsRune(keep, r) {
			return true
		}
	}
	return false
}

// JSON returns an equivalent JSON document that is safe to show: characters that do
// not print, which can only be in strings, become \u escapes. Line ends and tabs
// between its values stay.
func JSON(b []byte) []byte {
	if !hasEscapes(string(b), "\n\t") {
		return b
	}
	var out []byte
	for _, r := range string(b) {
		switch {
		case plain(r) || r == '\n' || r == '\t':
			out = utf8.AppendRune(out, r)
		case r < 0x10000:
			out = fmt.Appendf(out, `\u%04x`, r)
		default: // as UTF-16
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return out
}

// Count returns a number of things in words: "1 sync", "2 syncs". The plural ends in s.
func Count[N int | uint64](n N, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Quoted returns what a user wrote for a message, quoted and shortened: nothing in it can disturb a terminal.
func Quoted(s string) string {
	const longest = 60
	if len(s) > longest {
		return strconv.Quote(s[:longest]) + "..."
	}
	return strconv.Quote(s)
}

// Cut shortens a text to a width in characters, of which the last is then an ellipsis.
func Cut(text string, width int) string {
	n, end := 0, 0 // end: of the characters that fit before an ellipsis
	for i := range text {
		if n == width-1 {
			end = i
		}
		if n++; n > width {
			return text[:end] + "…"
		}
	}
	return text
}

// CutBytes is Cut to a number of bytes, three or more. What it returns does not keep the rest in memory.
func CutBytes(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := 0
	for i := range text {
		if i > most-len("…") {
			break
		}
		end = i
	}
	return text[:end] + "…"
}

// List is a list in words, cut short where it is longer than most: "a, b and 3 more".
func List(all []string, most int) string { return First(all[:min(most, len(all))], len(all)) }

// First is the same of a list of so many, of which there are the first ones.
func First(some []string, all int) string {
	text := strings.Join(some, ", ")
	if more := all - len(some); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// URL returns a URL without its user and its query, which may have passwords and tokens.
func URL(s string) string {
	if !strings.ContainsAny(s, "@?") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" { // such as a user without a scheme
		return "(hidden)"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// WithoutURL is an error of net/url or net/http without its URL, of which the text has the whole; others as they are.
func WithoutURL(err error) error {
	if of, is := errors.AsType[*url.Error](err); is {
		return of.Err
	}
	return err
}
