// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// Make makes the proxy under test for a scenario in its lab.
type Make func(*lab.Net, *conformance.Scenario) (Proxy, error)

// programTime is the limit of a proxy for one change, and for the traces of a step. What takes
// milliseconds elsewhere took more than a minute in user-mode Linux, with a tenth of a
// processor for the whole guest.
const programTime = 15 * time.Minute

// Run runs one scenario from its beginning to its end in a lab of its own, with
// dir, which must be empty, as the folder of manifests. Failures are in the
// report; the error has the reason if there is none.
func Run(ctx context.Context, s *conformance.Scenario, dir string, make Make) (r Report, err error) {
	return runWith(ctx, s, dir, make, 0)
}

// runWith is Run with a limit for answers and rejects; 0 for that of a [lab.Check].
func runWith(ctx context.Context, s *conformance.Scenario, dir string, make Make, patience time.Duration) (r Report, err error) {
	inv := take(s)
	net, err := lab.New(ctx, inv.plan)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, net.Close()) }()
	run := run{scenario: s, net: net, inventory: inv, dir: dir, patience: patience, had: map[string]netip.AddrPort{}, listeners: func() {}}
	defer func() { run.listeners() }()
	if err := run.serve(); err != nil {
		return r, err
	}
	if run.proxy, err = make(net, s); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, run.proxy.Stop()) }()
	run.report.Scenarios = 1
	for i, step := range s.Steps {
		if step.After > 0 {
			run.leave(s.Steps[i:], &Unfit{Why: errors.New("needs a clock that can be set")})
			return run.report, nil
		}
		if step.Suspects != nil {
			run.leave(s.Steps[i:], &Unfit{Why: errors.New("the proxy itself detects which endpoints do not answer")})
			return run.report, nil
		}
		err := run.step(ctx, step)
		var unfit *Unfit
		switch {
		case errors.As(err, &unfit):
			run.leave(s.Steps[i:], unfit)
			return run.report, nil
		case err != nil:
			return run.report, fmt.Errorf("%s: %s: %w", s.File, step.Title, err)
		}
	}
	return run.report, nil
}

type run struct {
	scenario *conformance.Scenario
	net      *lab.Net
	inventory
	dir       string
	proxy     Proxy
	report    Report
	listeners func()                    // closes those of the machine
	patience  time.Duration             // of a check
	had       map[string]netip.AddrPort // what each client reached in its last row with affinity
}

func (r *run) serve() error {
	for _, s := range r.servers {
		place, ok := r.net.PlaceOf(s.at.Addr())
		if !ok {
			return fmt.Errorf("server %s is nowhere in the lab", s.at)
		}
		_, err := r.net.Serve(place, s.at, s.proto)
		if _, ok := lab.Untestable(err); err != nil && !ok {
			return err
		}
	}
	return nil
}

// step brings the proxy to a step and judges it. The real packets between its two limits
// take as long as their number, and their waits for answers that must not come.
func (r *run) step(ctx context.Context, step conformance.Step) error {
	if err := r.program(ctx, step); err != nil {
		return err
	}
	r.report.Steps++
	return r.trace(ctx, step, r.judge(step))
}

// program has the proxy program a step.
func (r *run) program(ctx context.Context, step conformance.Step) error {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	if err := change(r.dir, step); err != nil {
		return err
	}
	if step.Number == 0 {
		if err := setAddresses(r.net, r.scenario); err != nil {
			return err
		}
		closeAll, err := listen(r.net, r.scenario)
		if err != nil {
			return err
		}
		r.listeners = closeAll
		if err := r.proxy.Start(ctx, r.dir, r.scenario.Host); err != nil {
			return fmt.Errorf("start: %w", err)
		}
	}
	if err := r.proxy.Changed(ctx); err != nil {
		return fmt.Errorf("wait for the proxy: %w", err)
	}
	return nil
}

// leave skips the rest of a scenario.
func (r *run) leave(steps []conformance.Step, why *Unfit) {
	for _, step := range steps {
		for range step.Packets {
			r.report.skip(fmt.Sprintf("%s: %v", r.scenario.File, why))
		}
	}
}

// change brings the folder up to date, file by file, each replaced as a whole.
func change(dir string, step conformance.Step) error {
	for _, name := range step.Changed {
		tmp := filepath.Join(dir, ".new")
		if err := os.WriteFile(tmp, step.Files[name], 0o644); err != nil {
			return err
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range step.Removed {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// judge judges the rows of a step: all at once, but those with affinity
// afterwards and one by one, because connections of one client that start
// together may each find that it has no endpoint yet.
func (r *run) judge(step conformance.Step) []verdict {
	const atOnce = 16
	verdicts := make([]verdict, len(step.Packets))
	var rows sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, row := range step.Packets {
		if row.Expect.SessionAffinity {
			continue
		}
		rows.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			verdicts[i] = r.row(row)
		})
	}
	rows.Wait()
	for i, row := range step.Packets {
		if row.Expect.SessionAffinity {
			verdicts[i] = r.row(row)
		}
	}
	for i, v := range verdicts {
		row := step.Packets[i]
		r.report.Connections += v.dials
		switch {
		case v.skip != "":
			r.report.skip(v.skip)
			continue
		case v.err != nil:
			r.report.fail("%s:%d: %s: the lab failed: %v", r.scenario.File, row.Line, row, v.err)
		case v.wrong != "":
			r.report.fail("%s:%d: %s -> %s (%s): %s", r.scenario.File, row.Line, row, row.Expect, step.Title, v.wrong)
		}
		r.report.Packets++
	}
	return verdicts
}

// verdict is the result of a row.
type verdict struct {
	wrong string
	err   error
	skip  string
	dials int
}

func (r *run) row(row conformance.Packet) (v verdict) {
	var gap model.Gap
	declared := false
	if g, ok := r.proxy.(Gapped); ok {
		gap, declared = g.Gap(row)
	}
	if declared && gap.Source { // all others must be right
		row.Expect.Endpoints = conformance.Masked(row.Expect.Outcome()).Endpoints
	}
	c := check(r.net, r.scenario, row, r.had[row.From]) // rows with affinity come one by one: see judge
	c.Patience = r.patience
	if h, ok := r.proxy.(Hashing); ok && h.OneForAClient(row) {
		c.SessionAffinity = true
	}
	v.wrong, v.err = c.Run(r.net)
	if row.Expect.SessionAffinity {
		r.had[row.From] = c.First
	}
	v.dials = c.Dials
	if reason, ok := lab.Untestable(v.err); ok {
		return verdict{skip: reason}
	}
	if declared && !gap.Source && v.wrong != "" {
		return verdict{skip: "gap: " + gap.Detail + ": " + v.wrong}
	}
	return v
}
