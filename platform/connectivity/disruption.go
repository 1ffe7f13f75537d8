// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// Load is what connections are made and held during a disruption.
type Load struct {
	Rate int           // new connections a second
	Held int           // long-lived connections, over all ways
	Slow time.Duration // from which on a new connection counts as slow
	For  time.Duration // at least; and until the disturbance is over

	// At most one of these is applied to the proxy; with none, by Command or the operator.
	Restart bool
	Upgrade string // restart with this program
	Switch  config.Mode
	Command []string
}

// Limits of a Load.
const (
	MaxRate = 5000
	MaxHeld = 10000
	MaxTime = time.Hour
)

// Disruption is the outcome of connections during a disturbance. Its JSON form is stable.
type Disruption struct {
	Node    string  `json:"node"`
	Mode    string  `json:"mode"` // at the start
	Seconds float64 `json:"seconds"`

	Disturbances []Disturbance `json:"disturbances"`
	New          []New         `json:"new"`
	Held         []Held        `json:"held"`
	// Failures are the first failed connections, at most mostFailures.
	Failures []Failure `json:"failures,omitempty"`
}

// Disturbance is one action on the proxy.
type Disturbance struct {
	What    string  `json:"what"`
	Second  float64 `json:"second"` // since the start
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// New counts new connections of a protocol: of one client each, with a question and its
// answer.
type New struct {
	Protocol string  `json:"protocol"`
	Made     int     `json:"made"`
	Failed   int     `json:"failed"` // refused, or without an answer
	Reset    int     `json:"reset"`  // ended after they were made
	Slow     int     `json:"slow"`
	P50      float64 `json:"p50Ms"`
	P99      float64 `json:"p99Ms"`
	Max      float64 `json:"maxMs"`
}

// Held counts connections of a protocol that were made before, and asked again and again.
type Held struct {
	Protocol string `json:"protocol"`
	Held     int    `json:"held"`
	Asked    int    `json:"asked"`
	Broken   int    `json:"broken"` // ended, or without an answer; TCP: or answered by another endpoint
	Moved    int    `json:"moved"`  // of UDP: answered by another endpoint since, as Services may
}

// Failure is a connection that broke.
type Failure struct {
	Second   float64 `json:"second"` // since the start
	Kind     string  `json:"kind"`   // new or held
	Protocol string  `json:"protocol"`
	From     string  `json:"from"`
	To       string  `json:"to"`
	What     string  `json:"what"`
}

// Broken is how many connections broke.
func (d *Disruption) Broken() (n int) {
	for _, x := range d.New {
		n += x.Failed + x.Reset
	}
	for _, x := range d.Held {
		n += x.Broken
	}
	return n
}

// mostFailures bounds the failures that are listed.
const mostFailures = 200

// measured is how many connect times of a protocol are kept: beyond that each takes the
// place of an earlier one, except the longest.
const measured = 100_000

// times are the durations of new connections.
type times struct {
	all   []time.Duration
	next  int
	worst time.Duration
}

func (t *times) add(d time.Duration) {
	t.worst = max(t.worst, d)
	if len(t.all) < measured {
		t.all = append(t.all, d)
		return
	}
	t.all[t.next] = d
	t.next = (t.next + 1) % measured
}

// quantile returns that of the kept times, in milliseconds.
func (t *times) quantile(q float64) float64 {
	if len(t.all) == 0 {
		return 0
	}
	slices.Sort(t.all)
	return milliseconds(t.all[min(int(q*float64(len(t.all))), len(t.all)-1)])
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
