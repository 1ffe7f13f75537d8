// SPDX-License-Identifier: Apache-2.0

package hnsemu_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The script for real nodes compares what they do with rules of the emulator: with
// those that are in its table, in its words, and that are documented nowhere in
// full. PowerShell is not at hand here, so that of the script itself only the pairs
// of its brackets and quotes are checked.
func TestSmokeAgreesWithTheRules(t *testing.T) {
	text, err := os.ReadFile("../../../ci/wine/smoke.ps1")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]rule{}
	for _, r := range rules(t) {
		table[r.name] = r
	}
	compared := regexp.MustCompile(`(?m)^\s*Compare "([^"]*)" "([^"]*)" \{`).FindAllStringSubmatch(string(text), -1)
	if len(compared) < 6 {
		t.Errorf("the script compares %d rules", len(compared))
	}
	for _, c := range compared {
		if r := table[c[1]]; r.says != c[2] {
			t.Errorf("%s: the script says %q, and the table %q", c[1], c[2], r.says)
		}
	}
	script := withoutText(string(text))
	for _, pair := range []string{"()", "{}", "[]"} {
		if a, b := strings.Count(script, pair[:1]), strings.Count(script, pair[1:]); a != b {
			t.Errorf("%d %s and %d %s", a, pair[:1], b, pair[1:])
		}
	}
	if strings.Count(script, `"`)%2 != 0 {
		t.Error("a quote is open")
	}
	for _, must := range []string{"finally {", "cleanup --proxy-mode kernelspace", "Remove-Item -Recurse $dir"} {
		if !strings.Contains(string(text), must) {
			t.Errorf("no %q: what it makes must go, also on failure", must)
		}
	}
}

// withoutText takes comments and the here-string of manifests out of a script.
func withoutText(script string) string {
	script = regexp.MustCompile(`(?s)@"\n.*?\n"@`).ReplaceAllString(script, "")
	return regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(script, "")
}
