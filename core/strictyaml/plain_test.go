// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"strings"
	"testing"
)

// plainSamples are documents that Plain reads.
var plainSamples = []string{
	"apiVersion: v1\nkind: Service\nmetadata: {name: web, labels: {app.kubernetes.io/name: web}}\nspec:\n  clusterIP: 10.96.0.10\n  clusterIPs: [10.96.0.10, fd00::a]\n  ports:\n  - name: http\n    port: 80\n    targetPort: http\n  - port: 443\n",
	"a:\n- b: c\n  d:\n  - 1\n  - e: [ ]\n    f:\n- {}\ng: 'it is # so'\nh: \"x: y\"\n",
	"# a comment\n\na: b\n  # another\nc:\n    d: {e: f, g: h}\n\n",
	"- a: b\n  c: true\n",
	"  - a: b\n    c:\n      d: null\n",
	"annotations:\n  cidr: 10.0.0.0/8\n  hash: 7c9d4f5b\n  image: registry.example/a/b:1.2.3\n  words: two words, and more\n  empty: {}\n  list: [{a: b}, {c: [d, 'e']}]\n",
	"a: 5d\nb: 1.2.3.4\nc: 0\nd: 9999999999\ne: 10.0.0.1:80\n",
}

// otherSamples are documents that it leaves to the parser.
var otherSamples = []string{
	"", "a", "a: &b c\nd: *b", "a: |\n  text\n", "a: b\n  c\n", "a: yes", "On: a", "a: 1.5", "a: 1e3", "a: 0x10", "a: 010", "a: 2001-01-01", "a: .inf", "a: ~",
	"a: b # comment", "a: b\na: c", "a: {b: c, b: d}", "a: [b,\n c]", "a:b", "a: b: c", "a: !!str 1", "a: 'it''s'", "a: \"\\n\"", "a: é", "a:\tb", "a: b\r\n",
	"- - a", "-\n  a: b", "a: -1", "a: 1_000", "? a\n: b", "<<: {a: b}", "a: {b}", "a: [b: c]", "{a: b}x", "a:\n  b: c\n d: e", "a: [b]c", "a: 12e4",
	"- a\nb: c", "a: b\n- c", "a: [", "a: {", "a: \"b", "a: [b,,c]", "a: [b,]", "%YAML 1.1", "a: {{ .x }}",
}

func TestPlain(t *testing.T) {
	for _, s := range plainSamples {
		if _, ok := Plain([]byte(s)); !ok {
			t.Errorf("not read: %q", s)
		}
		samePlain(t, []byte(s))
	}
	for _, s := range otherSamples {
		if got, ok := Plain([]byte(s)); ok {
			t.Errorf("%q was read as %s", s, got)
		}
	}
}

// FuzzPlain compares what is read with what Parse and Decode make of the same text.
func FuzzPlain(f *testing.F) {
	for _, s := range append(plainSamples, otherSamples...) {
		f.Add([]byte(s))
	}
	f.Fuzz(samePlain)
}

func samePlain(t *testing.T, text []byte) {
	got, ok := Plain(text)
	if !ok {
		return
	}
	if strings.Contains("\n"+string(text), "\n---") || strings.Contains("\n"+string(text), "\n...") {
		return // more than a document
	}
	root, after, bad := Parse(text)
	if bad != nil || root == nil || after >= 0 {
		t.Fatalf("%q was read as %s: %v %v %d", text, got, bad, root, after)
	}
	e := encoder{limits: fuzzLimits}
	if e.node(root, 0); len(e.faults) > 0 || e.halted || string(e.out) != string(got) {
		t.Fatalf("%q was read as %s, want %s %v", text, got, e.out, e.faults)
	}
}
