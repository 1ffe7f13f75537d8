// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
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
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

var (
	budget  = flag.Duration("for", 10*time.Second, "begin no run after this time; without it, -runs has no limit")
	runs    = flag.Int("runs", 0, "begin no more runs than this; 0 for any number")
	from    = flag.Uint64("first", 0, "the first seed")
	seeds   = flag.Uint64("seeds", 200, "how many seeds of each kind of fault and mode; without meaning where -runs is given")
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

// TestSimulation runs what -for leaves time for, or as many as -runs says, seed by seed. It
// prints violations as it finds them, and how far it is each minute, goes on to the
// end, and fails there.
func TestSimulation(t *testing.T) {
	s := &simulation{begin: time.Now(), byKind: map[string]int{}, byMode: map[config.Mode]modeSum{}}
	minute := time.NewTicker(time.Minute)
	ended := make(chan struct{})
	var progress sync.WaitGroup
	progress.Go(func() {
		for {
			select {
			case <-minute.C:
				s.say("%.0f s: %s", time.Since(s.begin).Seconds(), s.count())
			case <-ended:
				minute.Stop()
				return
			}
		}
	})
	jobs := make(chan job)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for j := range jobs {
				s.one(t, j)
			}
		})
	}
	begun := 0
	for j := range s.jobs() {
		if *onlyJob < 0 && (s.late() || *runs > 0 && begun == *runs) {
			break
		}
		begun++
		jobs <- j
	}
	close(jobs)
	workers.Wait()
	close(ended)
	progress.Wait()
	t.Log(s.table())
	s.say("simulation: %s in %.0f s", s.count(), time.Since(s.begin).Seconds())
	if s.violations > 0 {
		t.Errorf("%s; the first of %d runs with violations:\n%s", s.count(), s.violations, strings.Join(s.found, "\n"))
	}
}

// simulation adds up what has come of runs.
type simulation struct {
	begin time.Time

	mu         sync.Mutex
	runs       int
	violations int
	found      []string // the first of them
	sum        result
	byKind     map[string]int // faults
	byMode     map[config.Mode]modeSum
}

// mostFound bounds the violations that are listed at the end: one defect has many.
const mostFound = 20

// say prints a line at once: what a test logs comes at its end, without -v.
func (*simulation) say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// count is what was done so far.
func (s *simulation) count() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d runs, %d faults, %d crash points, %d violations", s.runs, s.sum.faults, s.sum.crashes, s.violations)
}

// late reports whether no run may begin any more.
func (s *simulation) late() bool {
	limited := *runs == 0
	flag.Visit(func(f *flag.Flag) { limited = limited || f.Name == "for" })
	return limited && time.Since(s.begin) > *budget
}

type modeSum struct{ runs, faults, crashes int }

// jobs are the requested runs: every kind, each in another mode, then every kind in
// the next mode, and when all kinds were in all modes the next seed. Between them are
// crashes, of which there is one for each write.
func (s *simulation) jobs() func(yield func(job) bool) {
	first, end := *from, *from+*seeds
	switch {
	case *onlyJob >= 0:
		first, end = uint64(*onlyJob), uint64(*onlyJob)+1
	case *runs > 0:
		end = math.MaxUint64
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
	defer func() {
		if p := recover(); p != nil { // a data race in a map, or goroutines that remain (I10)
			s.say("%s panics: again: %s", j, j.again())
			panic(p)
		}
	}()
	plan := j.plan()
	res := play(t, j, plan, *verbose)
	s.add(j, plan, res)
	if len(res.violations) == 0 {
		return
	}
	s.say("%s: %s\nagain: %s", j, strings.Join(res.violations, "\n  "), j.again())
	plan, res = shrink(t, j, plan, res)
	shorter := fmt.Sprintf("%s: %s\nplan: %v\nagain: %s\n%s", j, strings.Join(res.violations, "\n  "), plan, j.again(), res.log)
	s.say("made shorter: %s", shorter)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.found) < mostFound {
		s.found = append(s.found, shorter)
	}
}

// String names the run.
func (j job) String() string { return fmt.Sprintf("%s %s seed %d", j.mode, j.kind, j.seed) }

// again is how to run it again.
func (j job) again() string {
	return fmt.Sprintf("go test ./ci/simulate -run TestSimulation -mode %s -kind %s -seed %d -log", j.mode, j.kind, j.seed)
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

// Runs that violated an invariant once do not any more.
func TestSeedsThatViolated(t *testing.T) {
	for _, j := range []job{
		{"userspace", "F10", 179549307350},       // I2: pods had endpoints of clients from outside, between two writes
		{"ipvs", "F06+F21", 91000012},            // I8: the last endpoint went when the next could not be created
		{"kernelspace", "none", 98100164},        // I8: a node port went to a Service with affinity, for which HNS makes another load balancer
		{"iptables", "F02+F31", 98100181},        // I9: the server had accepted a watch after the ones that it redirected
		{"iptables", "F30+F02", 98100187},        // I9: the watch had become half-open before its first bookmark
		{"iptables", "F29", 77100008},            // I4: a restored server passed the version that is known after it was asked what it had
		{"kernelspace", "F29+F23", 930000000015}, // I4: a Service was deleted again, at another version, on a restored server
		{"ipvs", "F21+F29", 940000000162},        // I4: bookmarks had taken a watch past a change on a restored server, and its own objects told nothing
		{"ipvs", "F10", 9720000050},              // I2: a destination whose virtual server is gone took packets without a mark
	} {
		if res := play(t, j, j.plan(), *verbose); len(res.violations) > 0 {
			t.Errorf("%s: %s\n%s", j, strings.Join(res.violations, "\n  "), res.log)
		}
	}
}
