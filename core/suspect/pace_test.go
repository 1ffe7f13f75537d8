// SPDX-License-Identifier: Apache-2.0

package suspect_test

import (
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/suspect"
)

// Looks take at most 1 % of a core where that allows one every 1.25 s, and at most 2 %
// whatever they cost, however urgent they seem.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		cost, wanted time.Duration
		share        float64
		every        time.Duration // about
	}{
		{time.Millisecond, 500 * time.Millisecond, 0.01, 500 * time.Millisecond},
		{4500 * time.Microsecond, 500 * time.Millisecond, 0.01, 500 * time.Millisecond},
		{8 * time.Millisecond, 500 * time.Millisecond, 0.01, 800 * time.Millisecond},
		{8 * time.Millisecond, 100 * time.Millisecond, 0.01, 0},
		{8 * time.Millisecond, 200 * time.Millisecond, 0.01, 0},
		{12 * time.Millisecond, 500 * time.Millisecond, 0.01, 1200 * time.Millisecond},
		{20 * time.Millisecond, 500 * time.Millisecond, 0.016, 1250 * time.Millisecond},
		{50 * time.Millisecond, 500 * time.Millisecond, 0.02, 2500 * time.Millisecond},
		{50 * time.Millisecond, 200 * time.Millisecond, 0.02, 0},
		{3 * time.Millisecond, 200 * time.Millisecond, 0.01, 0},
	} {
		var p suspect.Pace
		now := time.Unix(0, 0)
		looks := 0
		for ; now.Before(time.Unix(600, 0)); looks++ {
			now = now.Add(p.Next(now, c.cost, c.wanted))
		}
		if share := (float64(looks)*c.cost.Seconds() - 0.3) / 600; share > c.share { // 0.3 s are there at the start
			t.Errorf("looks of %s, wanted every %s: %.2f %% of a core", c.cost, c.wanted, 100*share)
		}
		if every := 600 * time.Second / time.Duration(looks); c.every > 0 && (every < c.every*9/10 || every > c.every*11/10) {
			t.Errorf("looks of %s, wanted every %s: one every %s", c.cost, c.wanted, every)
		}
	}
}

// Second looks at handshakes on their way do not use up what a case needs.
func TestPaceKeepsReserve(t *testing.T) {
	var p suspect.Pace
	now := time.Unix(0, 0)
	for range 1000 {
		now = now.Add(p.Next(now, 8*time.Millisecond, 100*time.Millisecond))
	}
	for range 10 {
		if d := p.Next(now, 8*time.Millisecond, 200*time.Millisecond); d != 200*time.Millisecond {
			t.Errorf("the next look of a case is %s away", d)
		}
		now = now.Add(200 * time.Millisecond)
	}
}

// A case may use what was saved in calm times.
func TestPaceOfACase(t *testing.T) {
	var p suspect.Pace
	now := time.Unix(0, 0)
	for range 100 {
		now = now.Add(p.Next(now, 30*time.Millisecond, 500*time.Millisecond))
	}
	for range 3 {
		if d := p.Next(now, 30*time.Millisecond, 200*time.Millisecond); d != 200*time.Millisecond {
			t.Errorf("the next look of a case is %s away", d)
		}
		now = now.Add(200 * time.Millisecond)
	}
}
