// SPDX-License-Identifier: Apache-2.0

package diagnosis_test

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/diagnosis"
)

func TestWorst(t *testing.T) {
	for _, c := range []struct {
		levels []diagnosis.Level
		want   diagnosis.Level
	}{
		{nil, diagnosis.OK},
		{[]diagnosis.Level{diagnosis.OK, diagnosis.Note}, diagnosis.Note},
		{[]diagnosis.Level{diagnosis.Warn, diagnosis.Fail, diagnosis.OK}, diagnosis.Fail},
		{[]diagnosis.Level{diagnosis.Warn, diagnosis.Note}, diagnosis.Warn},
	} {
		var checks []diagnosis.Check
		for _, l := range c.levels {
			checks = append(checks, diagnosis.Check{Level: l})
		}
		if got := diagnosis.Worst(checks); got != c.want {
			t.Errorf("%q: %s, want %s", c.levels, got, c.want)
		}
	}
}

func TestWrite(t *testing.T) {
	var b strings.Builder
	err := diagnosis.Write(&b, []diagnosis.Check{
		{ID: "mode", Level: diagnosis.OK, Found: "auto means nftables here"},
		{ID: "forwarding-ipv4", Level: diagnosis.Fail, Found: "is 0\nand should not", Fix: "sysctl -w net.ipv4.ip_forward=1"},
	})
	const want = `OK    mode                   auto means nftables here
FAIL  forwarding-ipv4        is 0
                             and should not
                             fix: sysctl -w net.ipv4.ip_forward=1
`
	if err != nil || b.String() != want {
		t.Errorf("%v\n%s", err, b.String())
	}
}
