package iptables

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// What is written is read back as the same rule.
func TestRulesComeBack(t *testing.T) {
	var all []string
	for _, f := range model.Families() {
		for _, table := range []Table{Filter, NAT} {
			for _, text := range probeRules(f, table, true) {
				r, err := parseRule(string(text))
				if err != nil || r.text() != text {
					t.Errorf("%q is read as %q (%v)", text, r.text(), err)
				}
				all = append(all, strings.TrimSuffix(string(text), "\n"))
			}
		}
	}
	if got, want := canonical(all), strings.Join(all, "\n")+"\n"; string(got) != want {
		t.Errorf("canonical:\n%s\nwant:\n%s", got, want)
	}
}
