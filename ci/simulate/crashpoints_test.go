// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// situation is in which a process is killed at one of its writes.
type situation struct {
	what  string
	modes string                   // empty for all
	begin func(r *run, writes int) // before the first process; nil for nothing
	then  func(r *run, writes int) // when all is right; nil for nothing
}

var situations = []situation{
	{"start", "", func(r *run, writes int) {
		r.judge.expect()
		r.super.kill(writes)
	}, nil},
	{"restart", "", nil, restartAfterChanges},
	{"change", "", nil, func(r *run, writes int) {
		r.super.current().kill(writes)
		r.change(conformance.NewRand(sweepChanges))
	}},
	{"undone", onWindows, nil, undoneMeanwhile},
	{"audit", "", nil, func(r *run, writes int) {
		r.damage(conformance.NewRand(sweepChanges), 6)
		r.super.current().kill(writes)
		time.Sleep(auditEvery + time.Minute)
	}},
	{"switch", onLinux, nil, switchKilled},
	{"cleanup", "", func(r *run, writes int) { r.clean = writes }, nil},
}

// TestEachCrashPoint kills a process at each single write of a start, of a restart with
// changes, of a change, also one that is undone before the next start, of a repair by an
// audit, of a switch to another mode and back, and of a cleanup; in mode kernelspace also before
// it has the id of a load balancer that HNS has made for it. The next process must make all of it right (see run.rest), and the
// judge looks at packets between any two writes.
func TestEachCrashPoint(t *testing.T) {
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			points, sum := "", 0
			for _, s := range situations {
				if s.modes != "" && !slices.Contains(strings.Fields(s.modes), string(m)) {
					continue
				}
				t.Run(s.what, func(t *testing.T) {
					n := 0
					for s.survived(t, m, n) {
						n++
					}
					if n == 0 {
						t.Error("nothing was written")
					}
					points, sum = points+fmt.Sprintf(", %s %d", s.what, n), sum+n
				})
			}
			t.Logf("crash points: %d%s", sum, points)
		})
	}
}

// survived reports whether a process that was killed after so many writes has had more
// to write, and that all was right in the end.
func (s situation) survived(t *testing.T, m config.Mode, writes int) bool {
	res := inBubble(t, job{m, s.what, sweepSeed}, *verbose, func(p plane) plane { return p }, func(r *run) result {
		if s.begin != nil {
			s.begin(r, writes)
		}
		return r.live(func() {
			r.settle("start", settleLimit)
			if s.then != nil && len(r.violations) == 0 {
				s.then(r, writes)
				r.settle("end", settleLimit)
			}
			r.rest()
		})
	})
	if len(res.violations) > 0 {
		t.Fatalf("%s, killed after %d writes: %s\n%s", s.what, writes, strings.Join(res.violations, "\n  "), res.log)
	}
	return res.crashes > 0
}

// The seeds of a small cluster, and of changes that every mode writes something for.
const (
	sweepSeed    = 4
	sweepChanges = 14
)

// restartAfterChanges changes objects while no process runs; the next one is killed.
func restartAfterChanges(r *run, writes int) {
	r.super.kill(writes)
	p := r.super.current()
	p.cancel()
	for r.super.current() == p {
		time.Sleep(time.Millisecond)
	}
	rng := conformance.NewRand(sweepChanges)
	for range 3 {
		r.change(rng)
	}
	time.Sleep(2 * restartPause)
}

// undoneMeanwhile changes objects, and has them as before when the next process starts: what the
// one that was killed has made for them is nobody's any more.
func undoneMeanwhile(r *run, writes int) {
	p, before, rng := r.super.current(), r.cluster.now, conformance.NewRand(sweepChanges)
	p.kill(writes)
	for range 3 {
		r.change(rng)
	}
	for begin := time.Now(); p.alive() && time.Since(begin) < restartPause; {
		time.Sleep(time.Millisecond)
	}
	r.judge.change(func() ([]model.ServiceName, bool) { return r.cluster.set(before), false })
	time.Sleep(2 * restartPause)
}

// switchKilled switches to another mode and back, and is killed at one of its writes.
func switchKilled(r *run, writes int) {
	p := r.super.current()
	r.judge.shake(true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p.kill(writes)
	for _, to := range []config.Mode{r.others[0].mode().Name, r.job.mode} {
		if _, err := p.proxy.Switch(ctx, to, func(string) {}); err != nil {
			r.logf("switch to %s: %v", to, err)
		}
	}
	time.Sleep(2 * restartPause)
}
