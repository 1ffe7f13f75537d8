// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
)

// figures are what one run of a benchmark has measured: a table with a row for
// each quantity and a column for each proxy. Tandem's is the first column.
type figures struct {
	Bench   string   `json:"bench"`
	World   string   `json:"world"`   // what was served
	Machine string   `json:"machine"` // kernel, cores, versions
	Rounds  int      `json:"rounds"`
	Columns []string `json:"columns"`
	Peers   []string `json:"peers,omitempty"` // the columns that Tandem's is compared with
	// Sizes are those of the columns that differ in nothing else.
	Sizes map[string]float64 `json:"sizes,omitempty"`
	Rows  []row              `json:"rows"`
	Notes []string           `json:"notes,omitempty"`
}

// superlinear is the exponent above which a quantity grows faster than the cluster;
// what a linear one may differ by the machine's noise is below.
const superlinear = 1.1

// growth fits value = c * size^x to the columns that have a size, by least squares of
// the logarithms, and names x.
func (f *figures) growth(r *row) string {
	var n, sx, sy, sxx, sxy float64
	for column, size := range f.Sizes {
		v := r.Values[column] // 0 if it was not measured
		if !r.Grows || v <= 0 {
			continue
		}
		x, y := math.Log(size), math.Log(v)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if n < 2 {
		return ""
	}
	exponent := (n*sxy - sx*sy) / (n*sxx - sx*sx)
	text := fmt.Sprintf("n^%.2f", exponent)
	if exponent > superlinear {
		text += " **superlinear**"
	}
	return text
}

// row is one quantity.
type row struct {
	What   string             `json:"what"`
	Unit   unit               `json:"unit,omitempty"`
	Goal   goal               `json:"goal,omitzero"`
	Ratio  bool               `json:"ratio,omitempty"` // print the others as multiples of Tandem's value
	Grows  bool               `json:"grows,omitempty"` // show how it grows with the size
	Values map[string]float64 `json:"values"`          // by column; what is not there was not measured

	of string                  // the samples that it is made of
	by func([]float64) float64 // how
}

// goal is the limit for Tandem's value. At most one of the limits is set.
type goal struct {
	AtMost float64 `json:"atMost,omitempty"`
	Zero   bool    `json:"zero,omitempty"`  // nothing at all
	Times  float64 `json:"times,omitempty"` // less is better: the least ratio of each peer's value to Tandem's
	Share  float64 `json:"share,omitempty"` // more is better: the least ratio of Tandem's value to each peer's
	Flat   float64 `json:"flat,omitempty"`  // every column is at most so many times the first
	In     string  `json:"in,omitempty"`    // the only column that AtMost is for
}

// samples are measurements of one column, by what was measured.
type samples map[string][]float64

func (s samples) add(what string, value float64) { s[what] = append(s[what], value) }

// column adds the rows' values of one column.
func (f *figures) column(name string, peer bool, s samples) {
	f.Columns = append(f.Columns, name)
	if peer {
		f.Peers = append(f.Peers, name)
	}
	for i := range f.Rows {
		r := &f.Rows[i]
		if r.Values == nil {
			r.Values = map[string]float64{}
		}
		if all := s[r.of]; len(all) > 0 {
			r.Values[name] = r.by(slices.Sorted(slices.Values(all)))
		}
	}
}

// The ways to make one value of sorted samples. A quantile is the smallest value
// that at least this part of all does not exceed.
func median(s []float64) float64 { return quantile(s, .5) }
func p99(s []float64) float64    { return quantile(s, .99) }
func least(s []float64) float64  { return s[0] }
func most(s []float64) float64   { return s[len(s)-1] }
func number(s []float64) float64 { return float64(len(s)) }

func mean(s []float64) float64 { return total(s) / float64(len(s)) }

func total(s []float64) (sum float64) {
	for _, v := range s {
		sum += v
	}
	return sum
}

func quantile(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// String returns the figures as a table in Markdown. "(x 3)" is three times
// ours.
func (f *figures) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; %s; medians of %d\n\n| what | goal |", f.World, f.Machine, f.Rounds)
	for _, c := range f.Columns {
		fmt.Fprintf(&b, " %s |", c)
	}
	columns := 2 + len(f.Columns)
	if len(f.Sizes) > 0 {
		columns++
		b.WriteString(" grows as |")
	}
	b.WriteString("\n|" + strings.Repeat("---|", columns) + "\n")
	for i := range f.Rows {
		r := &f.Rows[i]
		if len(r.Values) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s |%s", r.What, f.verdict(r), f.cells(r))
		if len(f.Sizes) > 0 {
			fmt.Fprintf(&b, " %s |", f.growth(r))
		}
		b.WriteString("\n")
	}
	for _, note := range f.Notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

func (f *figures) cells(r *row) string {
	var b strings.Builder
	ours := r.Values[f.Columns[0]]
	for i, c := range f.Columns {
		v, ok := r.Values[c]
		if ok {
			b.WriteString(" " + r.Unit.show(v))
		}
		if ok && r.Ratio && i > 0 && ours > 0 && v > 0 {
			b.WriteString(" (x " + digits(v/ours) + ")")
		}
		b.WriteString(" |")
	}
	return b.String()
}

// verdict returns the goal of a row and whether it is met. What was not measured
// is not met.
func (f *figures) verdict(r *row) string {
	ours, measured := r.Values[f.Columns[0]]
	text, met := "", measured
	switch g := r.Goal; {
	case g.In != "" && !slices.Contains(f.Columns, g.In):
		return "" // in a small run
	case g.Zero, g.AtMost > 0:
		text = "≤ " + r.Unit.show(g.AtMost)
		if g.In != "" {
			text += " in " + g.In
		}
		met = f.atMost(r)
	case g.Times > 0:
		text = "theirs ≥ x " + digits(g.Times)
		met = met && f.each(r, func(theirs float64) bool { return theirs >= g.Times*ours })
	case g.Share > 0:
		text = "≥ x " + digits(g.Share) + " theirs"
		met = met && f.each(r, func(theirs float64) bool { return ours >= g.Share*theirs })
	case g.Flat > 0:
		text = "≤ x " + digits(g.Flat) + " the first"
		for _, c := range f.Columns {
			if v, ok := r.Values[c]; ok {
				met = met && v <= g.Flat*ours // in no column between them, either
			}
		}
	default:
		return ""
	}
	if met {
		return text + ": met"
	}
	return text + ": MISSED"
}

// atMost reports whether all columns that are not peers are small enough.
func (f *figures) atMost(r *row) bool {
	measured := false
	for _, c := range f.Columns {
		v, ok := r.Values[c]
		if !ok || slices.Contains(f.Peers, c) || r.Goal.In != "" && r.Goal.In != c {
			continue
		}
		if measured = true; v > r.Goal.AtMost {
			return false
		}
	}
	return measured
}

// each reports whether something is true of all peers, and there is one.
func (f *figures) each(r *row, good func(theirs float64) bool) bool {
	some := false
	for _, c := range f.Peers {
		v, ok := r.Values[c]
		if some = some || ok; ok && !good(v) {
			return false
		}
	}
	return some
}

// against returns an error where these figures are not at least what was recorded in a file, or cannot be compared.
func (f *figures) against(recorded *figures, file string) error {
	switch worse := f.worse(recorded); {
	case f.World != recorded.World || f.Bench != recorded.Bench:
		return fmt.Errorf("%s is of %s, %s", file, recorded.Bench, recorded.World)
	case len(f.both(recorded)) == 0:
		return fmt.Errorf("nothing is compared with %s: of its peers %v none was measured", file, recorded.Peers)
	case len(worse) > 0:
		return fmt.Errorf("worse than recorded:\n  %s", strings.Join(worse, "\n  "))
	}
	return nil
}

// both are the peers that were measured and are recorded.
func (f *figures) both(recorded *figures) []string {
	return slices.DeleteFunc(slices.Clone(f.Peers), func(peer string) bool { return !slices.Contains(recorded.Peers, peer) })
}

// allowance is how much worse a figure may be than what was recorded.
const allowance = 0.05

// worse names the figures that are less better than those of the nearest peer than recorded, of the peers in both:
// ratios of one run are compared, never times of two.
func (f *figures) worse(recorded *figures) (all []string) {
	both := f.both(recorded)
	for i := range f.Rows {
		r := &f.Rows[i]
		k := slices.IndexFunc(recorded.Rows, func(other row) bool { return other.What == r.What })
		if !r.Ratio || k < 0 {
			continue
		}
		was, now := recorded.nearest(&recorded.Rows[k], both), f.nearest(r, both)
		if now < was*(1-allowance) {
			all = append(all, fmt.Sprintf("%s: x %.2f, recorded x %.2f", r.What, now, was))
		}
	}
	return all
}

// nearest is how many times better ours is than that of the nearest peer; 0 without one.
func (f *figures) nearest(r *row, peers []string) (times float64) {
	ours := r.Values[f.Columns[0]]
	for _, peer := range peers {
		theirs := r.Values[peer]
		if ours <= 0 || theirs <= 0 {
			continue
		}
		better := theirs / ours
		if r.Goal.Share > 0 { // more is better
			better = 1 / better
		}
		if times == 0 || better < times {
			times = better
		}
	}
	return times
}

// unit is how a value is shown.
type unit string

const (
	seconds unit = "s"
	memory  unit = "B"
	share   unit = "%"
	numbers unit = ""
)

func (u unit) show(v float64) string {
	switch u {
	case seconds:
		return showSeconds(v)
	case memory:
		if v < 1<<20 {
			return fmt.Sprintf("%.0f B", v)
		}
		return fmt.Sprintf("%.0f MB", v/(1<<20))
	case share:
		return fmt.Sprintf("%.1f %%", 100*v)
	}
	if v == math.Trunc(v) || v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return digits(v)
}

func showSeconds(v float64) string {
	switch {
	case v == 0:
		return "0 s"
	case v < 1e-6:
		return digits(v*1e9) + " ns"
	case v < 1e-3:
		return digits(v*1e6) + " µs"
	case v < 1:
		return digits(v*1e3) + " ms"
	}
	return digits(v) + " s"
}

// digits shows a number with two digits that mean something.
func digits(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// record writes figures to a file; readFigures reads them.
func (f *figures) record(file string) error {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func readFigures(file string) (f figures, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err == nil && len(f.Columns) == 0 {
		err = fmt.Errorf("no columns")
	}
	if err != nil {
		return f, fmt.Errorf("figures %s: %w", file, err)
	}
	return f, nil
}
