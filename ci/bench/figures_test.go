// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/xml"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func sampleRows() []row {
	return []row{
		{What: "first, p50", of: "first", by: median, Unit: seconds, Ratio: true, Goal: goal{AtMost: 10e-3}},
		{What: "first, p99", of: "first", by: p99, Unit: seconds, Ratio: true, Goal: goal{AtMost: 100e-3}},
		{What: "failed", of: "failed", by: total, Goal: goal{Zero: true}},
		{What: "start", of: "start", by: median, Unit: seconds, Ratio: true, Goal: goal{Times: 2}},
		{What: "memory", of: "resident", by: median, Unit: memory, Ratio: true},
		{What: "rate", of: "rate", by: median, Ratio: true, Goal: goal{Share: .9}},
		{What: "nothing", of: "nothing", by: median},
	}
}

func sampleFigures() figures {
	ours := samples{"start": {2}, "resident": {50 << 20}, "rate": {90}}
	theirs := samples{"start": {1, 9, 4}, "resident": {100 << 20}, "rate": {100}}
	for i := range 100 {
		ours.add("first", float64(i)/1000)
		ours.add("failed", 0)
		theirs.add("first", 1)
		theirs.add("failed", float64(i%2))
	}
	f := figures{Bench: "sample", World: "a world", Machine: "a machine", Rounds: 3, Rows: sampleRows()}
	f.column("ours", false, ours)
	f.column("theirs", true, theirs)
	return f
}

func TestTable(t *testing.T) {
	f := sampleFigures()
	for _, want := range []string{
		"a world; a machine; medians of 3\n",
		"| what | goal | ours | theirs |\n",
		"| first, p50 | ≤ 10 ms: MISSED | 50 ms | 1.0 s (x 20) |\n",
		"| first, p99 | ≤ 100 ms: met | 99 ms | 1.0 s (x 10) |\n",
		"| failed | ≤ 0: met | 0 | 50 |\n",
		"| start | theirs ≥ x 2.0: met | 2.0 s | 4.0 s (x 2.0) |\n",
		"| memory |  | 50 MB | 100 MB (x 2.0) |\n",
		"| rate | ≥ x 0.9 theirs: met | 90 | 100 (x 1.1) |\n",
	} {
		if !strings.Contains(f.String(), want) {
			t.Errorf("%q is missing in\n%s", want, f.String())
		}
	}
	if strings.Contains(f.String(), "nothing") {
		t.Error("a row without values is printed")
	}
}

// A figure that is more than 5 % worse in comparison with the nearest peer is named, whatever the machine.
func TestWorse(t *testing.T) {
	recorded := sampleFigures()
	for name, c := range map[string]struct {
		change func(what string, ours, theirs float64) (float64, float64)
		want   []string
	}{
		"the same":               {func(_ string, a, b float64) (float64, float64) { return a, b }, nil},
		"a machine half as fast": {func(_ string, a, b float64) (float64, float64) { return 2 * a, 2 * b }, nil},
		"4 % worse":              {func(what string, a, b float64) (float64, float64) { return scaled(what, a, 1.04), b }, nil},
		"6 % worse":              {func(what string, a, b float64) (float64, float64) { return scaled(what, a, 1.06), b }, []string{"first, p50: x 18.87, recorded x 20.00", "first, p99: x 9.53, recorded x 10.10", "start: x 1.89, recorded x 2.00", "memory: x 1.89, recorded x 2.00", "rate: x 0.85, recorded x 0.90"}},
		"one, and the peer improved": {func(what string, a, b float64) (float64, float64) {
			if what == "start" {
				return a, b / 2
			}
			return a, b
		}, []string{"start: x 1.00, recorded x 2.00"}},
	} {
		t.Run(name, func(t *testing.T) {
			now := sampleFigures()
			for _, r := range now.Rows {
				if len(r.Values) == 2 {
					r.Values["ours"], r.Values["theirs"] = c.change(r.What, r.Values["ours"], r.Values["theirs"])
				}
			}
			if got := now.worse(&recorded); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// Figures without a peer, of another world, or worse ones do not pass beside those that were recorded.
func TestAgainst(t *testing.T) {
	recorded := sampleFigures()
	for want, change := range map[string]func(*figures){
		"":                    func(*figures) {},
		"nothing is compared": func(f *figures) { f.Columns, f.Peers = f.Columns[:1], nil },
		"FILE is of":          func(f *figures) { f.World = "another" },
		"worse than recorded": func(f *figures) { f.Rows[0].Values["ours"] *= 2 },
	} {
		now := sampleFigures()
		change(&now)
		if err := now.against(&recorded, "FILE"); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// scaled makes a value so many times as bad.
func scaled(what string, v, times float64) float64 {
	if what == "rate" {
		return v / times
	}
	return v * times
}

// What was recorded makes the same table.
func TestRecord(t *testing.T) {
	f, file := sampleFigures(), filepath.Join(t.TempDir(), "figures.json")
	if err := f.record(file); err != nil {
		t.Fatal(err)
	}
	again, err := readFigures(file)
	if err != nil || again.String() != f.String() {
		t.Errorf("%v\n%s\n%s", err, again.String(), f.String())
	}
	for i := range f.Rows {
		f.Rows[i].of, f.Rows[i].by = "", nil
	}
	if !reflect.DeepEqual(again.Rows, f.Rows) {
		t.Errorf("%+v\n%+v", again.Rows, f.Rows)
	}
}

// A missing measurement neither fails a table nor counts as a goal that was met.
func TestTableOfNothing(t *testing.T) {
	f := figures{Rows: sampleRows()}
	f.column("ours", false, samples{})
	f.column("theirs", true, samples{"first": {1}, "start": {1}, "failed": {0}, "rate": {1}})
	if strings.Contains(f.String(), ": met") {
		t.Error(f.String())
	}
}

// All peers are the measure, and each size is.
func TestGoalsOfAll(t *testing.T) {
	f := figures{Rows: []row{
		{What: "slower", of: "start", by: median, Goal: goal{Times: 2}},
		{What: "flat", of: "flat", by: median, Goal: goal{Flat: 2}},
	}}
	f.column("ours", false, samples{"start": {2}, "flat": {1}})
	f.column("slow", true, samples{"start": {9}, "flat": {3}})
	f.column("fast", true, samples{"start": {3}, "flat": {1}})
	if strings.Count(f.String(), "MISSED") != 2 {
		t.Error(f.String())
	}
}

// How a row grows is fitted to the columns with a size, and named if that is more than
// in proportion.
func TestGrowth(t *testing.T) {
	f := figures{
		Sizes: map[string]float64{"small": 1000, "middle": 10000, "large": 100000},
		Rows: []row{
			{What: "square", of: "square", by: median, Grows: true},
			{What: "linear", of: "linear", by: median, Grows: true},
			{What: "constant", of: "constant", by: median, Grows: true},
			{What: "time", of: "square", by: median},
		},
	}
	for name, n := range f.Sizes {
		f.column(name, false, samples{"square": {n * n / 7}, "linear": {3 * n}, "constant": {5}})
	}
	f.column("another", false, samples{"square": {1}, "linear": {1e9}, "constant": {1e9}})
	for _, want := range []string{" | grows as |\n|---|---|---|---|---|---|---|\n", "n^2.00 **superlinear** |\n", "n^1.00 |\n", "n^0.00 |\n"} {
		if strings.Count(f.String(), want) != 1 {
			t.Errorf("%q is not there once in\n%s", want, f.String())
		}
	}
}

func TestWorldIsUnambiguous(t *testing.T) {
	w := world{services: 100000, endpoints: 5}
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

var update = flag.Bool("update", false, "draw the plot again")

// The plot in the README is that of the recorded figures.
func TestPlot(t *testing.T) {
	f, err := readFigures("figures/kubernetes.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := plot(&f)
	if err != nil {
		t.Fatal(err)
	}
	const file = "figures/kubernetes.svg"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != got {
		t.Errorf("%s is not drawn from figures/kubernetes.json (go test ./ci/bench -update): %v", file, err)
	}
	if err := xml.Unmarshal([]byte(got), new(struct{ XMLName xml.Name })); err != nil {
		t.Error(err)
	}
	if _, err := plot(&figures{}); err == nil {
		t.Error("nothing is plotted")
	}
}

// A misspelt contender is an error, not a table of nothing.
func TestUnknownContender(t *testing.T) {
	b := bench{name: "some", rows: func(options) []row { return nil }, run: func(ctx context.Context, o options, f *figures) error {
		var all []contender
		if o.chosen("Tandem") {
			all = append(all, contender{name: "Tandem", round: func(context.Context, samples) error { return nil }})
		}
		return inRounds(ctx, 1, all, f)
	}}
	if err := b.start(t.Context(), []string{"-only", "Tandem"}); err != nil {
		t.Error(err)
	}
	if err := b.start(t.Context(), []string{"-only", "tandem"}); err == nil {
		t.Error("no contender has this name")
	}
}
