// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math/bits"
	"time"
)

// hour is what the last minutes were like: how many changes were applied and how long they took, and what
// the process used. It has no timer: what was used is read when there is a sync or a reader, at most once a minute for
// syncs, and is spread over the minutes since the last reading.
type hour struct {
	minutes [Minutes]minute // the one of a moment in place (minutes since the epoch) % Minutes
	last    Usage
	read    int64 // the minute of the last reading; 0 before the first
}

// Minutes is how many minutes are remembered.
const Minutes = 60

// minute is one of them: 160 bytes.
type minute struct {
	number int64      // since the epoch; 0 for none
	took   [32]uint32 // changes, by the binary logarithm of the microseconds that each took
	cpu    time.Duration
	memory uint64
}

// Usage is what a process has used since its start, and what it has now.
type Usage struct {
	CPU    time.Duration
	Memory uint64 // bytes: resident, or on Windows what Go has of the system
}

// Minute is one of the last hour.
type Minute struct {
	At      time.Time `json:"at"`               // its beginning
	Changes uint64    `json:"changes"`          // that were applied
	Median  Seconds   `json:"median,omitempty"` // half of them took no longer, from the arrival to the end of the sync; up to twice too long
	P99     Seconds   `json:"p99,omitempty"`    // likewise 99 %
	CPU     Seconds   `json:"cpu"`              // of all threads
	Memory  uint64    `json:"memory,omitempty"` // in bytes: resident, or on Windows what Go has of the system
}

// number is the number of the minute of a moment, in nanoseconds since the epoch.
func number(at int64) int64 { return at / int64(time.Minute) }

// of returns a minute, which replaces the one an hour before.
func (h *hour) of(n int64) *minute {
	m := &h.minutes[n%Minutes]
	if m.number != n {
		*m = minute{number: n}
	}
	return m
}

// applied counts a change that was applied at a moment.
func (h *hour) applied(at int64, took time.Duration) {
	h.of(number(at)).took[min(bits.Len64(uint64(max(0, took.Microseconds()))), 31)]++
}

// used takes a reading at a moment.
func (h *hour) used(at int64, u Usage) {
	now := number(at)
	if h.read == 0 || now < h.read || u.CPU < h.last.CPU { // the first, or the clock was set back
		h.read, h.last = now, Usage{CPU: u.CPU}
	}
	first := max(h.read, now-Minutes+1)
	each := (u.CPU - h.last.CPU) / time.Duration(now-h.read+1)
	for n := first; n <= now; n++ {
		m := h.of(n)
		m.cpu += each
		m.memory = u.Memory
	}
	h.read, h.last = now, u
}

// list returns the minutes of the hour before a moment, oldest first, without those before the first of which
// something is known.
func (h *hour) list(at int64) (all []Minute) {
	now := number(at)
	for n := max(0, now-Minutes+1); n <= now; n++ {
		m := h.minutes[n%Minutes]
		if m.number != n {
			if len(all) == 0 {
				continue
			}
			m = minute{}
		}
		out := Minute{At: time.Unix(60*n, 0).UTC(), CPU: Seconds(m.cpu.Seconds()), Memory: m.memory}
		for _, c := range m.took {
			out.Changes += uint64(c)
		}
		out.Median, out.P99 = m.quantile((out.Changes+1)/2), m.quantile((99*out.Changes+99)/100)
		all = append(all, out)
	}
	return all
}

// quantile is what so many of the changes took at most.
func (m *minute) quantile(changes uint64) Seconds {
	for power, n := range m.took {
		if changes <= uint64(n) && n > 0 {
			return Seconds((time.Duration(1<<power) * time.Microsecond).Seconds())
		}
		changes -= min(changes, uint64(n))
	}
	return 0
}
