// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// sample is a type with a field of every kind.
type sample struct {
	Name    string            `json:"name"`
	Count   *int32            `json:"count,omitempty"`
	Enabled bool              `json:"enabled"`
	Labels  map[string]string `json:"labels"`
	Items   []struct {
		Port int64 `json:"port"`
	} `json:"items"`
}

var fuzzLimits = Limits{Depth: 64, Work: 100_000, JSONBytes: 1 << 20, Faults: 20}

// FuzzStrict reads any text as YAML or JSON. Faults must be few, on one line each,
// and name lines that exist; what is accepted must mean the same to Kubernetes'
// reader.
func FuzzStrict(f *testing.F) {
	for _, s := range []string{
		"", "---", "name: a\ncount: 0x10\nenabled: yes\nlabels: {a: b}\nitems:\n- port: 80\n", "name: a\nname: b\nfoo: 1\n", "{\"name\":\"\\ud83d\\ude00\"}",
		"name: !foo x\ncount: 1e3\n", "labels: &l {a: b}\nitems: [*l]\n<<: *l\n", "\xff\xfen\x00", "a: [\n", "name: .nan", "\tname: x", "name: a\u2028name: b",
		"a: &a [1]\nb: &b [*a,*a]\nc: [*b,*b]", "enabled: \"yes\"", "count: 99999999999", "? [a]\n: b", "name: n", "labels: {on: a}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, line, why := Text(bytes.Clone(data))
		lines := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + 1
		if why != "" {
			if line < 1 || line > lines {
				t.Fatalf("line %d of %d: %s", line, lines, why)
			}
			return
		}
		root, after, bad := Parse(text)
		if bad != nil {
			check(t, []Fault{*bad}, lines)
			return
		}
		if root == nil || after >= 0 {
			return
		}
		var ours, theirs sample
		faults, _ := Decode(root, &ours, fuzzLimits)
		check(t, faults, yamlLines(text))
		if len(faults) > 0 {
			return
		}
		if err := yaml.Unmarshal(joinSurrogates(text), &theirs); err == nil && !reflect.DeepEqual(ours, theirs) {
			t.Fatalf("%q: %+v, Kubernetes reads %+v", text, ours, theirs)
		}
	})
}

func check(t *testing.T, faults []Fault, lines int) {
	t.Helper()
	if len(faults) > 2*fuzzLimits.Faults {
		t.Fatalf("%d faults", len(faults))
	}
	for _, f := range faults {
		if f.Line < 0 || f.Line >= lines || f.Text == "" || strings.ContainsAny(f.Text, "\n\r\x1b") {
			t.Fatalf("fault %q in line %d of %d", f.Text, f.Line, lines)
		}
	}
}

// yamlLines counts lines as YAML does, which ends some that other formats do not.
func yamlLines(text []byte) int {
	n := 1
	for _, r := range string(text) {
		if strings.ContainsRune("\n\u0085\u2028\u2029", r) {
			n++
		}
	}
	return n
}
