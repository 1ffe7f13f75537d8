// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"time"
)

// Everything is read again as often as asked for, but never most of the time.
func TestPoll(t *testing.T) {
	begin := time.Now()
	for _, c := range []struct {
		every, took, after time.Duration
		want               bool
	}{
		{30 * time.Second, 10 * time.Millisecond, 29 * time.Second, false},
		{30 * time.Second, 10 * time.Millisecond, 31 * time.Second, true},
		{30 * time.Second, time.Second, 31 * time.Second, false},
		{30 * time.Second, time.Second, 201 * time.Second, true},
		{0, 0, time.Hour, false},
	} {
		p := Poll{Every: c.every}
		p.Begin(begin)
		p.End(begin.Add(c.took))
		if got := p.Due(begin.Add(c.after)); got != c.want {
			t.Errorf("every %s, took %s, after %s: %t", c.every, c.took, c.after, got)
		}
	}
}
