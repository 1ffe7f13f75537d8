// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// Chains of others beyond the limit are counted: a trace hides none in silence. Those without effect, and our own, do
// not count.
func TestOthersBeyondTheLimit(t *testing.T) {
	var all []diagnosis.BaseChain
	for range maxOthers + 3 {
		all = append(all,
			diagnosis.BaseChain{Family: "ip", Table: "fw", Name: "input", Type: "filter", Hook: "input", Rules: 1},
			diagnosis.BaseChain{Family: "ip", Table: "fw", Name: "empty", Type: "filter", Hook: "input"},
			diagnosis.BaseChain{Family: "ip", Table: "tandem", Name: "nat", Type: "nat", Hook: "output", Rules: 1})
	}
	got := others(all, "tandem")
	if len(got) != maxOthers+1 || !strings.HasPrefix(got[maxOthers], "and 3 more chains of other programs") {
		t.Errorf("%d texts, the last is %q", len(got), got[len(got)-1])
	}
	if few := others(all[:3*maxOthers], "tandem"); len(few) != maxOthers || strings.HasPrefix(few[maxOthers-1], "and ") {
		t.Errorf("%d texts, the last is %q", len(few), few[len(few)-1])
	}
}
