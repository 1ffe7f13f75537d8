// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Long texts stay valid UTF-8 and, as addresses of one range, different; the whole is in the title.
func TestLongTextsOfBoxes(t *testing.T) {
	seen := map[string]bool{}
	for _, text := range []string{
		"10.244.1.2:8080", "[2001:db8:1234:5678:9abc:def0:1234:5678]:30080/tcp", "[2001:db8:1234:5678:9abc:def0:1234:5679]:30080/tcp",
		"default/äöüßäöüßäöüßäöüßäöüß", "default/äöüßäöüßäöüßäöüßäöüä",
	} {
		short := shorten(text)
		if n := utf8.RuneCountInString(short); !utf8.ValidString(short) || n > 24 || (short == text) != (utf8.RuneCountInString(text) <= 24) || seen[short] {
			t.Errorf("%s becomes %q", text, short)
		}
		seen[short] = true
		var b strings.Builder
		box(&b, "endpoint", 0, 0, text, "")
		if !strings.Contains(b.String(), ">"+text+"<") {
			t.Errorf("%s is not there as a whole: %s", text, b.String())
		}
	}
}
