// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/tandem-proxy/tandem/core/question"
)

// FuzzStatusText shows any status that a server may answer with: no line is forged, the
// terminal gets no control characters, tables stay within the screen's rules.
func FuzzStatusText(f *testing.F) {
	text, err := json.Marshal(someStatus())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, 80)
	f.Add([]byte(`{"services":[{"name":"a\u001b[2J\nb","state":"\u202e","frontends":[{"address":"x"}],"problems":[{}]}]}`), 1)
	f.Fuzz(func(t *testing.T, text []byte, width int) {
		var doc question.Status
		if json.Unmarshal(text, &doc) != nil {
			return
		}
		var b bytes.Buffer
		s := &screen{out: &b, width: width % 200}
		writeStatus(s, doc, new(filter), false)
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && r != '\t' && r != ' ' && !unicode.IsPrint(r) }); i >= 0 {
			t.Fatalf("%q", b.String()[i:])
		}
	})
}
