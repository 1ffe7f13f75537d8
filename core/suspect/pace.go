// SPDX-License-Identifier: Apache-2.0

package suspect

import "time"

// Pace keeps the CPU time of checks within a budget: 1 % of a core where that allows a check
// every 1.25 s, and else 2 %. Urgent checks use up the saved budget; half
// of that is kept for cases.
type Pace struct {
	saved time.Duration // CPU time
	at    time.Time
	cost  time.Duration // of a look while it is calm
}

const (
	leastShare = 100 // a look costs its CPU time, and has that many times as long
	mostShare  = 50
	slowest    = 1250 * time.Millisecond
	mostSaved  = 300 * time.Millisecond
)

// Next returns the time until the next look, after one that has cost some CPU time.
func (p *Pace) Next(now time.Time, cost, wanted time.Duration) time.Duration {
	if p.at.IsZero() {
		p.saved, p.cost = mostSaved, cost
	} else {
		p.saved += now.Sub(p.at) / p.share()
	}
	p.at = now
	p.saved = min(p.saved, mostSaved) - cost
	reserve := time.Duration(0)
	if wanted == lookAgain {
		reserve = mostSaved / 2
	}
	if wanted < calmPause && p.saved > reserve {
		return wanted
	}
	p.cost = (3*p.cost + cost) / 4
	const leave = 20 // this part of the budget is saved
	return max(wanted, calmPause, p.share()*(p.cost+p.cost/leave))
}

// share is how many times the cost of a look are between two.
func (p *Pace) share() time.Duration {
	return max(min(leastShare, slowest/max(p.cost, 1)), mostShare)
}
