// SPDX-License-Identifier: Apache-2.0

package diagnosis_test

import (
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
