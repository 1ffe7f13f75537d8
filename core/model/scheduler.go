// SPDX-License-Identifier: Apache-2.0

package model

// Scheduler is how a Port chooses among the endpoints of a pool for a new
// connection. Session affinity comes first, where there is any.
type Scheduler uint8

// The schedulers. What a mode cannot do is a Gap, and chosen at random.
const (
	DefaultScheduler Scheduler = iota // what the mode always does
	RoundRobin                        // one after the other
	LeastConnections                  // the endpoint with the fewest connections for its weight
	SourceHash                        // by the client's address
	Random
	Maglev // by the client's address and port, in a table that is the same on all nodes
	schedulers
)

var schedulerNames = [...]string{
	DefaultScheduler: "", RoundRobin: "rr", LeastConnections: "lc", SourceHash: "sh", Random: "random", Maglev: "maglev",
}

// String returns the scheduler's name in annotations; empty for the default.
func (s Scheduler) String() string { return schedulerNames[s] }

// ParseScheduler is the reverse of String.
func ParseScheduler(name string) (s Scheduler, ok bool) {
	for s = range schedulers {
		if s.String() == name {
			return s, true
		}
	}
	return DefaultScheduler, false
}
