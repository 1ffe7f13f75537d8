package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// How long is waited for what start-up leaves to be done, and then looked at a
// proxy at rest.
const settle, idle = 5 * time.Second, 5 * time.Second

// change is what came of one write.
type change struct {
	first, last time.Duration // to the first connection to the new, the last to the old
	failed      int           // connections that nobody answered meanwhile
}

// result is everything that was measured of a contender, in all rounds.
type result struct {
	contender
	start, startCPU, idleCPU, changeCPU, packet []time.Duration
	resident, after, peak                       []int64
	changes                                     []change
}

// row is one line of the table. Less is better in all of them.
type row struct {
	what  string
	of    func(r *result) float64 // in the unit that show takes; negative where there is nothing
	show  func(float64) string
	goal  float64 // for us; 0 is none
	times float64 // for us in iptables mode: theirs at its best is that many times ours; 0 is none
	ratio bool    // is worth telling
}

func rows() []row {
	return []row{
		{"slice written to first connection, p50", func(r *result) float64 { return float64(r.first(.5)) }, seconds, 10e6, 0, true},
		{"same, p99", func(r *result) float64 { return float64(r.first(.99)) }, seconds, 25e6, 0, true},
		{"slice written to last connection to a removed endpoint, p50", func(r *result) float64 { return float64(r.last(.5)) }, seconds, 0, 0, true},
		{"same, p99", func(r *result) float64 { return float64(r.last(.99)) }, seconds, 0, 0, true},
		{"connections that failed meanwhile", func(r *result) float64 { return float64(r.failed()) }, count, 0, 0, false},
		{"process start to everything programmed", func(r *result) float64 { return float64(median(r.start)) }, seconds, 1e9, 2, true},
		{"CPU of that and " + settle.String() + " more, children included", func(r *result) float64 { return float64(median(r.startCPU)) }, seconds, 0, 0, true},
		{"CPU of a change, children included", func(r *result) float64 { return float64(median(r.changeCPU)) }, seconds, 2e6, 5, true},
		{"CPU at rest, of one core", func(r *result) float64 { return float64(median(r.idleCPU)) / float64(idle) }, percent, 0, 0, false},
		{"resident memory at rest", func(r *result) float64 { return float64(median(r.resident)) }, megabytes, 60 << 20, 0, true},
		{"resident memory after the changes", func(r *result) float64 { return float64(median(r.after)) }, megabytes, 60 << 20, 0, true},
		{"peak with children", func(r *result) float64 { return float64(median(r.peak)) }, megabytes, 0, 0, true},
		{"first packet, added to connection tracking alone", func(r *result) float64 { return float64(median(r.packet)) }, seconds, 0, 5, true},
		{"changes measured", func(r *result) float64 { return float64(len(r.changes)) }, count, 0, 0, false},
	}
}

// table renders results as Markdown. The first is what the others are compared
// with: "x 3" is three times its figure. The iptables mode has goals of its own.
func table(all []result, mode string) string {
	var b strings.Builder
	b.WriteString("| what (medians) | goal |")
	for i := range all {
		fmt.Fprintf(&b, " %s |", all[i].name)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(all)) + "\n")
	for _, row := range rows() {
		fmt.Fprintf(&b, "| %s |", row.what)
		ours := row.of(&all[0])
		b.WriteString(row.aim(all, mode) + " |")
		for i := range all {
			v := row.of(&all[i])
			fmt.Fprintf(&b, " %s", row.show(v))
			if row.ratio && i > 0 && ours > 0 && v > 0 {
				fmt.Fprintf(&b, " (x %s)", digits(v/ours))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// aim tells the goal of a row, and whether it is met.
func (r row) aim(all []result, mode string) string {
	ours, measured := r.of(&all[0]), len(all[0].changes) > 0
	switch {
	case mode == iptablesMode && r.times > 0:
		met := measured && len(all) > 1
		for i := range all[1:] {
			met = met && r.of(&all[1+i]) >= r.times*ours
		}
		return fmt.Sprintf(" theirs ≥ x %s: %s", digits(r.times), verdict(met))
	case mode != iptablesMode && r.goal > 0:
		return fmt.Sprintf(" ≤ %s: %s", r.show(r.goal), verdict(measured && ours <= r.goal))
	}
	return ""
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "MISSED"
}

func (r *result) first(q float64) time.Duration {
	return quantile(r.changes, q, func(c change) time.Duration { return c.first })
}

func (r *result) last(q float64) time.Duration {
	return quantile(r.changes, q, func(c change) time.Duration { return c.last })
}

func (r *result) failed() (n int) {
	for _, c := range r.changes {
		n += c.failed
	}
	return n
}

// quantile returns the smallest value that at least a part q of all do not
// exceed.
func quantile(all []change, q float64, of func(change) time.Duration) time.Duration {
	var s []time.Duration
	for _, c := range all {
		s = append(s, of(c))
	}
	slices.Sort(s)
	if len(s) == 0 {
		return 0
	}
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func median[T cmp.Ordered](all []T) (m T) {
	s := slices.Sorted(slices.Values(all))
	if len(s) == 0 {
		return m
	}
	return s[len(s)/2]
}

func show(d time.Duration) string { return seconds(float64(d)) }

// seconds shows nanoseconds.
func seconds(v float64) string {
	switch {
	case v < 1e3:
		return digits(v) + " ns"
	case v < 1e6:
		return digits(v/1e3) + " µs"
	case v < 1e9:
		return digits(v/1e6) + " ms"
	}
	return digits(v/1e9) + " s"
}

func megabytes(v float64) string { return fmt.Sprintf("%.0f MB", v/(1<<20)) }

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func count(v float64) string { return fmt.Sprintf("%.0f", v) }

// digits shows a number with two digits that mean something.
func digits(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
