// SPDX-License-Identifier: Apache-2.0

package suspect

import "time"

// Pace keeps the CPU time of looks within a budget: 1 % of a core where that allows a look
// each second, and never more than 2 %. Looks that a case needs soon may use up
// what was saved before.
type Pace struct {
	saved time.Duration // CPU time
	at    time.Time
	cost  time.Duration // of a look while it is calm
}

const (
	leastShare = 100 // a look costs its CPU time, and has that many times as long
	mostShare  = 50
	slowest    = time.Second
	mostSaved  = 300 * time.Millisecond
)

// Next returns the time until the next look, after one that has cost some CPU time.
func (p *Pace) Next(now time.Time, cost, wanted time.Duration) time.Duration {
	if !p.at.IsZero() {
		p.saved += now.Sub(p.at) / mostShare
	} else {
		p.saved = mostSaved
	}
	p.at = now
	p.saved = min(p.saved, mostSaved) - cost
	if wanted < calmPause && p.saved > 0 {
		return wanted
	}
	p.cost = (3*p.cost + cost) / 4
	return max(wanted, calmPause, min(leastShare*p.cost, max(slowest, mostShare*p.cost)))
}
