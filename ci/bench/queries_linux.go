// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
)

// asked is a command that asks the running tandem.
type asked struct {
	name  string
	args  []string
	input string // standard input
}

// questions are all verbs that ask, about one Service in the middle and about all.
func (w world) questions() []asked {
	i := w.services / 2
	service := namespace(i) + "/" + name(i)
	var edit strings.Builder
	w.manifest(&edit, i, 1)
	return []asked{
		{name: "explain", args: []string{"explain", "pod", service + ":80"}},
		{name: "trace", args: []string{"trace", "pod", service + ":80"}},
		{name: "drift", args: []string{"drift"}},
		{name: "services, one", args: []string{"services", service}},
		{name: "services, all", args: []string{"services"}},
		{name: "status, one namespace", args: []string{"status", "-n", namespace(i)}},
		{name: "status, all", args: []string{"status"}},
		{name: "history", args: []string{"history"}},
		{name: "history, all", args: []string{"history", "--limit", "0"}},
		{name: "top", args: []string{"top", "--interval", "1ms"}},
		{name: "plan --against-running", args: []string{"plan", "--against-running", "--manifests", "-"}, input: edit.String()},
		{name: "snapshot", args: []string{"snapshot"}},
	}
}

// queries measures the questions to a running tandem, and what they cost its changes.
func queries() bench {
	return bench{
		name: "queries", about: "queries to a running tandem: how long they take, their memory, and changes at the same time",
		rows: func(o options) []row {
			rows := []row{
				{What: "change, from its arrival to the kernel's acknowledgement, p50", of: "change", by: median, Unit: seconds},
				{What: "same, p99", of: "change", by: p99, Unit: seconds, Ratio: true, Goal: goal{Flat: 1.5}},
				{What: "p99 of its stages: in the queue", of: "queue", by: p99, Unit: seconds},
				{What: "resolved", of: "resolve", by: p99, Unit: seconds},
				{What: "compiled", of: "compile", by: p99, Unit: seconds},
				{What: "written", of: "write", by: p99, Unit: seconds},
				{What: "changes measured", of: "change", by: number},
				{What: "resident memory before", of: "before", by: median, Unit: memory},
				{What: "resident memory 30 s after", of: "after", by: median, Unit: memory},
				{What: "growth, with what the folder's changes leave in the history", of: "growth", by: most, Unit: memory, Goal: goal{AtMost: 4 << 20}},
			}
			for _, q := range o.queryWorld().questions() {
				rows = append(rows,
					row{What: q.name + ": the command, median", of: q.name, by: median, Unit: seconds},
					row{What: q.name + ": the command, least", of: q.name, by: least, Unit: seconds, Goal: goal{AtMost: .1}},
					row{What: q.name + ": CPU of tandem", of: q.name + " CPU", by: median, Unit: seconds},
					row{What: q.name + ": CPU of the command, least", of: q.name + " own CPU", by: least, Unit: seconds},
					row{What: q.name + ": allocated by tandem", of: q.name + " allocated", by: median, Unit: memory})
			}
			return rows
		},
		run: runQueries,
	}
}

func (o options) queryWorld() world {
	w := world{services: cmp.Or(o.world.services, 10000), endpoints: 5}
	if o.short {
		w.services = 500
	}
	return w
}

func runQueries(ctx context.Context, o options, f *figures) error {
	w := o.queryWorld()
	f.World = w.String() + " from manifests"
	if err := ip("link set lo up"); err != nil {
		return err
	}
	if err := w.write(o.dir); err != nil {
		return err
	}
	p, err := launch(o.dir, exec.Command(o.tandem, "run", "--manifests", o.dir, "--node", nodeName, "--cluster-cidr", pods.String(), "--log-level", "warn",
		"--proxy-mode", o.mode, "--count-connections"))
	if err != nil {
		return err
	}
	r := &queryRun{world: w, options: o, tandem: p}
	quiet, polled, each := samples{}, samples{}, samples{}
	err = r.measure(ctx, quiet, polled, each)
	p.stop()
	f.column("no questions", false, quiet)
	f.column("all asked each second", false, polled)
	f.column("asked alone", false, each)
	return errors.Join(err, o.cleanup())
}

// queryRun is a tandem that is asked.
type queryRun struct {
	world
	options
	tandem *process
	turned int // how often the endpoint of the changing Service was replaced
}

func (r *queryRun) measure(ctx context.Context, quiet, polled, each samples) error {
	if err := until(ctx, 3*time.Minute, 20*time.Millisecond, func() (bool, error) { return healthy(ctx), r.tandem.ended() }); err != nil {
		return err
	}
	changes := cmp.Or(r.options.changes, 1000)
	if err := r.change(ctx, max(history.Most-2*changes, 0), time.Millisecond, samples{}); err != nil { // so that the history is full
		return err
	}
	sleep(ctx, 8*time.Second) // let memory that start-up needed go back
	before := resident(r.tandem.pid())
	quiet.add("before", before)
	if err := r.inTurn(ctx, changes, quiet, polled); err != nil {
		return err
	}
	for _, q := range r.questions() {
		if err := r.measureOne(ctx, q, each); err != nil {
			return err
		}
	}
	sleep(ctx, 30*time.Second)
	each.add("after", resident(r.tandem.pid()))
	each.add("growth", max(resident(r.tandem.pid())-before, 0))
	return nil
}

// inTurn makes changes without and with questions beside them, a few at a time, so that
// whatever else the machine does meets both.
func (r *queryRun) inTurn(ctx context.Context, changes int, quiet, polled samples) error {
	const turns = 4
	for range turns {
		if err := r.change(ctx, changes/turns, 10*time.Millisecond, quiet); err != nil {
			return err
		}
		polling, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- r.poll(polling) }()
		err := r.change(ctx, changes/turns, 10*time.Millisecond, polled)
		stop()
		if err = errors.Join(err, <-done); err != nil {
			return err
		}
	}
	sleep(ctx, 30*time.Second)
	polled.add("after", resident(r.tandem.pid()))
	return nil
}

// poll sends all queries each second until ctx ends. The commands give way to tandem: what
// they take of the processors is no question of tandem's.
func (r *queryRun) poll(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ctx.Err() == nil {
		for _, q := range r.questions() {
			if _, err := r.ask(context.WithoutCancel(ctx), q, "nice", "-n", "19"); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// ask runs the command, by another program if one is named, and returns its CPU time in
// seconds.
func (r *queryRun) ask(ctx context.Context, q asked, by ...string) (own float64, err error) {
	line := slices.Concat(by, []string{r.options.tandem}, q.args)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Stdin = strings.NewReader(q.input)
	var said bytes.Buffer
	cmd.Stderr = &said
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 3) { // something would change
		return 0, fmt.Errorf("tandem %s: %w: %s", strings.Join(q.args, " "), err, said.Bytes())
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), nil
}

// measureOne asks one question, often enough for the kernel's ticks of CPU time.
func (r *queryRun) measureOne(ctx context.Context, q asked, s samples) error {
	const times = 10
	busy := cpu(r.tandem.pid())
	allocated, err := metric(ctx, "go_memstats_alloc_bytes_total")
	if err != nil {
		return err
	}
	for range times {
		start := time.Now()
		own, err := r.ask(ctx, q)
		if err != nil {
			return err
		}
		s.add(q.name, time.Since(start).Seconds())
		s.add(q.name+" own CPU", own)
	}
	s.add(q.name+" CPU", (cpu(r.tandem.pid())-busy)/times)
	now, err := metric(ctx, "go_memstats_alloc_bytes_total")
	s.add(q.name+" allocated", (now-allocated)/times)
	return err
}

// change replaces an endpoint of the first Service n times, and records from the
// history how long each took.
func (r *queryRun) change(ctx context.Context, n int, every time.Duration, s samples) error {
	file := filepath.Join(r.options.dir, "changing.yaml")
	last := uint64(0)
	if d, err := r.changes(ctx, 1); err == nil && len(d.Entries) > 0 {
		last = d.Entries[0].Number
	}
	for range n {
		r.turned++
		var b strings.Builder
		r.manifest(&b, r.services, r.turned)
		if err := os.WriteFile(file+".new", []byte(b.String()), 0o600); err != nil {
			return err
		}
		if err := os.Rename(file+".new", file); err != nil {
			return err
		}
		sleep(ctx, every)
	}
	if err := until(ctx, time.Minute, 50*time.Millisecond, func() (bool, error) {
		d, err := r.changes(ctx, 1)
		return err == nil && len(d.Entries) == 1 && d.Entries[0].Sync != nil && d.Entries[0].Number > last, err
	}); err != nil && n > 0 {
		return err
	}
	d, err := r.changes(ctx, 0)
	for _, e := range d.Entries {
		if e.Number > last && e.Sync != nil {
			s.add("change", float64(e.Sync.Took))
			s.add("queue", float64(e.Sync.Stages.Queue))
			s.add("resolve", float64(e.Sync.Stages.Resolve))
			s.add("compile", float64(e.Sync.Stages.Compile))
			s.add("write", float64(e.Sync.Stages.Write))
		}
	}
	return err
}

func (r *queryRun) changes(ctx context.Context, limit int) (history.Document, error) {
	return platform.Ask(ctx, question.ListChanges(), history.Filter{Limit: limit})
}
