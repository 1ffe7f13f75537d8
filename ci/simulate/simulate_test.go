// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/conformance"
)

var (
	budget  = flag.Duration("for", 10*time.Second, "begin no run after this time")
	from    = flag.Uint64("first", 0, "the first seed")
	seeds   = flag.Uint64("seeds", 200, "how many seeds of each kind of fault and mode")
	onlyJob = flag.Int64("seed", -1, "run this seed alone, with -mode and -kind")
	mode    = flag.String("mode", "", "this mode alone")
	only    = flag.String("kind", "", "this kind of fault alone, or a pair as F01+F10")
	times   = flag.Int("times", 1, "run each seed so many times")
	pairs   = flag.Bool("pairs", true, "also pairs of faults")
	verbose = flag.Bool("log", false, "show what the proxy logs in a run that fails")
)

// TestMain silences the client of the API server, which logs much about connections that
// are cut. A run makes much garbage and keeps little: it is collected less often.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	var logging flag.FlagSet
	klog.InitFlags(&logging)
	if err := errors.Join(logging.Set("logtostderr", "false"), logging.Set("stderrthreshold", "FATAL")); err != nil {
		panic(err)
	}
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// TestSimulation runs what -for leaves time for, seed by seed.
func TestSimulation(t *testing.T) {
	s := &simulation{begin: time.Now(), byKind: map[string]int{}, byMode: map[config.Mode]modeSum{}}
	jobs := make(chan job)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for j := range jobs {
				s.one(t, j)
			}
		})
	}
	for j := range s.jobs() {
		if *onlyJob < 0 && time.Since(s.begin) > *budget {
			break
		}
		jobs <- j
	}
	close(jobs)
	workers.Wait()
	t.Log(s.table())
	t.Logf("simulation: %d runs, %d faults, %d crash points, %d violations", s.runs, s.sum.faults, s.sum.crashes, s.violations)
}

// simulation adds up what has come of runs.
type simulation struct {
	begin time.Time

	mu         sync.Mutex
	runs       int
	violations int
	sum        result
	byKind     map[string]int // faults
	byMode     map[config.Mode]modeSum
}

type modeSum struct{ runs, faults, crashes int }

// jobs are the requested runs: every kind, each in another mode, then every kind in
// the next mode, and when all kinds were in all modes the next seed. Between them are
// crashes, of which there is one for each write.
func (s *simulation) jobs() func(yield func(job) bool) {
	first, end := *from, *from+*seeds
	if *onlyJob >= 0 {
		first, end = uint64(*onlyJob), uint64(*onlyJob)+1
	}
	return func(yield func(job) bool) {
		for seed := first; seed < end; seed++ {
			for round := range modes {
				for i, kind := range names(seed) {
					m := modes[(i+round)%len(modes)]
					for range *times {
						if (*mode == "" || *mode == string(m)) && fits(kind, m) && !yield(job{m, kind, seed}) {
							return
						}
					}
					if crashed := (job{m, "F10", seed*100 + uint64(i)}); *only == "" && *onlyJob < 0 && i%5 == 0 &&
						(*mode == "" || *mode == string(m)) && !yield(crashed) {
						return
					}
				}
			}
		}
	}
}

// names are the kinds of a seed: none, each alone, and as many pairs, others for each
// seed.
func names(seed uint64) (all []string) {
	if *only != "" {
		return []string{*only}
	}
	all = []string{"none"}
	for i, k := range kinds {
		all = append(all, k.id)
		if other := kinds[(i+1+int(seed)%(len(kinds)-1))%len(kinds)]; *pairs {
			all = append(all, k.id+"+"+other.id)
		}
	}
	return all
}

// fits reports whether all kinds of a name exist in a mode.
func fits(name string, m config.Mode) bool {
	for _, k := range kinds {
		if slices.Contains(strings.Split(name, "+"), k.id) && !k.in(m) {
			return false
		}
	}
	return true
}

// plan is what a job does: changes, and among them its faults.
func (j job) plan() (steps []step) {
	rng := conformance.NewRand(j.seed ^ 0x5eed)
	faults := strings.Split(j.kind, "+")
	for i := range 8 {
		s := step{seed: rng.Uint64(), pause: some(rng)}
		if j.kind != "none" && i%3 == 1 {
			s.kind = faults[rng.IntN(len(faults))]
			switch i {
			case 1:
				s.kind = faults[0]
			case 4:
				s.kind = faults[len(faults)-1]
			}
		}
		steps = append(steps, s)
	}
	return steps
}

// one runs a job, and makes its plan shorter if it fails.
func (s *simulation) one(t *testing.T, j job) {
	plan := j.plan()
	res := play(t, j, plan, *verbose)
	s.add(j, plan, res)
	if len(res.violations) == 0 {
		return
	}
	plan, res = shrink(t, j, plan, res)
	t.Errorf("%s %s seed %d: %s\nplan: %v\nagain: go test ./ci/simulate -run TestSimulation -mode %s -kind %s -seed %d -log\n%s",
		j.mode, j.kind, j.seed, strings.Join(res.violations, "\n  "), plan, j.mode, j.kind, j.seed, res.log)
}

// shrink leaves out steps as long as the rest still fails.
func shrink(t *testing.T, j job, plan []step, res result) ([]step, result) {
	for i := len(plan) - 1; i >= 0; i-- {
		shorter := slices.Delete(slices.Clone(plan), i, i+1)
		if again := play(t, j, shorter, *verbose); len(again.violations) > 0 {
			plan, res = shorter, again
		}
	}
	return plan, res
}

func (s *simulation) add(j job, plan []step, res result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	m := s.byMode[j.mode]
	s.byMode[j.mode] = modeSum{m.runs + 1, m.faults + res.faults, m.crashes + res.crashes}
	s.sum.faults += res.faults
	s.sum.crashes += res.crashes
	s.sum.packets += res.packets
	s.sum.writes += res.writes
	s.sum.slowest = max(s.sum.slowest, res.slowest)
	if len(res.violations) > 0 {
		s.violations++
	}
	for _, step := range plan {
		if step.kind != "" {
			s.byKind[step.kind]++
		}
	}
}

// table is what was done, by mode and kind.
func (s *simulation) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d writes were judged by %d packets; slowest return to the right state %s\n", s.sum.writes, s.sum.packets, s.sum.slowest)
	for _, m := range slices.SortedFunc(maps.Keys(s.byMode), func(a, b config.Mode) int { return cmp.Compare(a, b) }) {
		sum := s.byMode[m]
		fmt.Fprintf(&b, "  %-12s %d runs, %d faults, %d crash points\n", m, sum.runs, sum.faults, sum.crashes)
	}
	for _, k := range kinds {
		fmt.Fprintf(&b, "  %s %-45s %d\n", k.id, k.what, s.byKind[k.id])
	}
	return b.String()
}
