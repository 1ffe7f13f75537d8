// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"encoding/json"
	"testing"
)

// FuzzSurrogates demands that JSON says the same without its pairs.
func FuzzSurrogates(f *testing.F) {
	for _, s := range []string{`"\ud83d\ude00"`, `"\\ud83d\\ude00"`, `["\ude00\ud83d","\ud83d","\ud83dx\u00e9\n"]`, `{"\ud83d\ude00":1}`, `"\u0022\ud83d\ud83d\ude00"`, `{`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var want, got any
		out := joinSurrogates(text)
		if json.Unmarshal(text, &want) != nil {
			if string(out) != string(text) {
				t.Fatalf("%q became %q", text, out)
			}
			return
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q became %q: %v", text, out, err)
		}
		w, _ := json.Marshal(want)
		g, _ := json.Marshal(got)
		if string(w) != string(g) {
			t.Fatalf("%q became %q", text, out)
		}
	})
}
