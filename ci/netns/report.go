// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Report is the result of running scenarios.
type Report struct {
	Scenarios, Steps int
	Packets          int // rows that were judged
	Connections      int // that were made for it
	Failures         []string
	Skipped          map[string]int // rows that were not judged, by reason
}

func (r *Report) skip(reason string) {
	if r.Skipped == nil {
		r.Skipped = map[string]int{}
	}
	r.Skipped[reason]++
}

func (r *Report) fail(format string, args ...any) {
	r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
}

// add adds another report.
func (r *Report) add(o Report) {
	r.Scenarios += o.Scenarios
	r.Steps += o.Steps
	r.Packets += o.Packets
	r.Connections += o.Connections
	r.Failures = append(r.Failures, o.Failures...)
	for reason, n := range o.Skipped {
		for range n {
			r.skip(reason)
		}
	}
}

// String returns the numbers, and every reason for which rows were skipped.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "corpus: on the kernel: %d scenarios, %d steps, %d packets (%d connections)", r.Scenarios, r.Steps, r.Packets, r.Connections)
	if len(r.Skipped) == 0 {
		b.WriteString(", none skipped")
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Skipped)) {
		fmt.Fprintf(&b, "\ncorpus: on the kernel: skipped %d rows: %s", r.Skipped[reason], reason)
	}
	return b.String()
}
