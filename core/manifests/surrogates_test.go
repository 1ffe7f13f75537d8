package manifests

import (
	"encoding/json"
	"testing"
	"testing/fstest"
)

// TestSurrogates reads JSON with a character beyond 16 bits, escaped as kubectl's
// and every other encoder of ASCII does it, the long way: it has an unknown field.
func TestSurrogates(t *testing.T) {
	const text = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","annotations":{"x":"\\u005c \ud83d\ude00 \ud83d \u00e9"}},
"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80,"nodePort":30080}]}}`
	r, err := ReadFS(t.Context(), fstest.MapFS{"x.json": {Data: []byte(text)}})
	if err != nil || len(r.Services) != 1 || len(r.Problems) != 1 || r.Problems[0].Line != 2 {
		t.Fatalf("%d services, %v", len(r.Services), r.Problems)
	}
}

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
