// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// The path of a packet along very many rules is shortened, says so, and ends with the rule that ended it.
func TestALongPath(t *testing.T) {
	l, err := newLive(question.Trace{Explanation: question.Explanation{From: "198.51.100.7", To: "10.96.0.10:80", Protocol: "tcp"}}, "outside")
	if err != nil {
		t.Fatal(err)
	}
	for range mostPath + 3 {
		l.ruleEvent(nft.Step{ID: 1, Table: "ip fw", Chain: "input", Handle: 7, Verdict: "continue"})
	}
	l.ruleEvent(nft.Step{ID: 1, Table: "ip fw", Chain: "input", Handle: 8, Verdict: "drop"})
	l.conclude(nil)
	path := l.result.Path
	if n := len(path); n != mostPath+2 || path[n-2] != "nftables: and 3 more rules" || path[n-1] != "nftables: ip fw input: rule 8: drop" {
		t.Errorf("%d steps, at the end %q", n, path[max(0, n-2):])
	}
}
