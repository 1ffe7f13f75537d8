// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// bench is a benchmark: its Services, its figures, and the proxies it measures.
type bench struct {
	name, about string
	rows        func(o options) []row
	// run adds a column for each contender to the figures, mostly by rounds.
	run func(ctx context.Context, o options, f *figures) error
}

// options are the parameters of a run. Zero values mean the benchmark's own.
type options struct {
	world    world
	rounds   int
	changes  int           // per round and contender, at most
	patience time.Duration // for all changes of a round and contender; ipvs: for each step
	outage   time.Duration // of the API server, at the end
	mode     string        // Tandem's, in the kubernetes benchmark
	clients  int           // in the fleet benchmark
	short    bool          // the smallest size that shows that all works
	only     []string      // contenders; empty is all

	tandem, before, kubeProxy, fleet string // programs
	upstream                         string // the folder ci/kubernetes/upstream
	dir                              string // for this run's files
}

// chosen reports whether a contender is to be measured.
func (o options) chosen(name string) bool { return len(o.only) == 0 || slices.Contains(o.only, name) }

// withBefore returns the same options for the other tandem.
func (o options) withBefore() options {
	o.tandem = o.before
	return o
}

// contender is one of those that are measured in turn.
type contender struct {
	name string
	peer bool
	// round measures once, from a fresh start; stop, if any, ends the contender.
	round func(ctx context.Context, s samples) error
	stop  func()
}

// inRounds measures contenders in turn, in an order that rotates, so that whatever
// else the machine does affects all of them. A peer that fails is logged and skipped.
func inRounds(ctx context.Context, n int, all []contender, f *figures) error {
	if len(all) == 0 {
		return fmt.Errorf("bench %s: nothing is measured: it has no contender of that name", f.Bench)
	}
	found := make([]samples, len(all))
	for i := range found {
		found[i] = samples{}
		if all[i].stop != nil {
			defer all[i].stop()
		}
	}
	for round := range n {
		for i := range all {
			k := (i + round) % len(all)
			fmt.Fprintf(os.Stderr, "round %d of %d, load %s: %s\n", round+1, n, load(), all[k].name)
			err := all[k].round(ctx, found[k])
			if err != nil && all[k].peer && ctx.Err() == nil {
				f.Notes = append(f.Notes, fmt.Sprintf("Round %d: %s failed: %v", round+1, all[k].name, err))
			} else if err != nil {
				return fmt.Errorf("%s: %w", all[k].name, err)
			}
		}
	}
	f.Rounds = n
	for i, c := range all {
		f.column(c.name, c.peer, found[i])
	}
	return nil
}

// load is the number of runnable processes, which shows how far the
// figures can be trusted.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(b), " ")
	return one
}

// machine names what was measured on.
func machine() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("kernel %s, %d cores, %s", strings.TrimSpace(string(b)), runtime.NumCPU(), runtime.Version())
}

// until waits for something, looking every so often.
func until(ctx context.Context, limit, every time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("not within "+limit.String()))
	defer cancel()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		sleep(ctx, every)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
