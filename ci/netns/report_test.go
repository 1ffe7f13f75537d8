// SPDX-License-Identifier: Apache-2.0

package netns

import "testing"

func TestReport(t *testing.T) {
	one := Report{Scenarios: 1, Steps: 2, Packets: 3, Connections: 4}
	one.skip("no SCTP")
	one.fail("row %d", 7)
	var sum Report
	if got, want := sum.String(), "corpus: on the kernel: 0 scenarios, 0 steps, 0 packets (0 connections), 0 traces, none skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	sum.add(one)
	sum.add(one)
	const want = "corpus: on the kernel: 2 scenarios, 4 steps, 6 packets (8 connections), 0 traces\ncorpus: on the kernel: skipped 2 rows: no SCTP"
	if got := sum.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(sum.Failures) != 2 || sum.Failures[0] != "row 7" {
		t.Errorf("failures %q", sum.Failures)
	}
}
