package main

import (
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	ours := result{contender: contender{name: "ours", ours: true}, start: []time.Duration{2 * time.Second}, resident: []int64{50 << 20}}
	theirs := result{contender: contender{name: "theirs"}, start: []time.Duration{time.Second, 9 * time.Second, 4 * time.Second}, resident: []int64{100 << 20}}
	for i := range 100 {
		ours.changes = append(ours.changes, change{first: time.Duration(i) * time.Millisecond, last: time.Millisecond})
		theirs.changes = append(theirs.changes, change{first: time.Second, failed: i % 2})
	}
	got := table([]result{ours, theirs}, "nftables")
	for _, want := range []string{
		"| slice written to first connection, p50 | ≤ 10 ms: MISSED | 50 ms | 1.0 s (x 20) |\n",
		"| same, p99 | ≤ 25 ms: MISSED | 99 ms | 1.0 s (x 10) |\n",
		"| connections that failed meanwhile | | 0 | 50 |\n",
		"| process start to everything programmed | ≤ 1.0 s: MISSED | 2.0 s | 4.0 s (x 2.0) |\n",
		"| resident memory at rest | ≤ 60 MB: met | 50 MB | 100 MB (x 2.0) |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

// In iptables mode it is the others that are the measure, each of them.
func TestTableOfIPTables(t *testing.T) {
	ours := result{start: []time.Duration{time.Second}, changeCPU: []time.Duration{1}, changes: make([]change, 1)}
	slow := result{start: []time.Duration{3 * time.Second}, changeCPU: []time.Duration{6}}
	fast := result{start: []time.Duration{2 * time.Second}, changeCPU: []time.Duration{4}}
	got := table([]result{ours, slow, fast}, iptablesMode)
	for _, want := range []string{
		"| process start to everything programmed | theirs ≥ x 2.0: met |",
		"| CPU of a change, children included | theirs ≥ x 5.0: MISSED |",
		"| resident memory at rest | |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

// Nothing measured must not stop a table, nor count as a goal that was met.
func TestTableOfNothing(t *testing.T) {
	got := table([]result{{contender: contender{name: "ours"}}, {contender: contender{name: "theirs"}}}, "nftables")
	if strings.Contains(got, ": met") {
		t.Error(got)
	}
}

func TestWorldIsUnambiguous(t *testing.T) {
	w := world{services: 10000, endpoints: 5}
	seen := map[string]bool{}
	for i := range w.services {
		for _, s := range []string{w.vip(i).String(), w.pod(i, 0, 0).String(), w.pod(i, 4, 1).String()} {
			if seen[s] {
				t.Fatalf("%s is there twice", s)
			}
			seen[s] = true
		}
		for g := range generations {
			if a := w.pod(i, 3, g); generation(a) != g || !pods.Contains(a) {
				t.Fatalf("%s is of generation %d", a, generation(a))
			}
		}
	}
}
