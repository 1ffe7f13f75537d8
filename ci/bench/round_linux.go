// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// A round of changes: so many of each kind, one after the other, at this pace; then a
// while in which what follows from them counts, too.
const (
	roundChanges = 10
	roundPace    = 100 * time.Millisecond
	roundAfter   = 4 * time.Second
)

// round measures what changes cost a running tandem that follows an API server: CPU time
// of the whole process and its children, not the clock.
//
//	bench ──Put, Delete──▶ apitest ──watch, TLS──▶ tandem run ──transaction──▶ kernel
//	  ▲                                                                           │
//	  └──────────── ruleset's generation, asked every 100 µs ◀────────────────────┘
//
// The kernel's notices of commits would say the same, but with any listener it makes them
// within tandem's system calls.
func round() bench {
	small, large := roundWorlds()[0], roundWorlds()[1]
	return bench{
		name: "round", about: "CPU of tandem run for a round of changes, and at rest",
		rows: func(options) []row {
			return []row{
				{What: "CPU of a round: 10 Services created, 10 endpoints added, 10 removed, 10 Services deleted", of: "round", by: median, Unit: seconds, Goal: goal{AtMost: 7e-3, In: small.String()}},
				{What: "the same in the larger cluster", of: "round", by: median, Unit: seconds, Goal: goal{AtMost: 20e-3, In: large.String()}},
				{What: "the same, least", of: "round", by: least, Unit: seconds},
				{What: "endpoint added, from the write to the kernel's commit, p50", of: "added", by: median, Unit: seconds, Goal: goal{AtMost: 1e-3}},
				{What: "the same, p99", of: "added", by: p99, Unit: seconds, Goal: goal{AtMost: 5e-3}},
				{What: "Service created, the same, p50", of: "created", by: median, Unit: seconds},
				{What: "endpoint removed, the same, p50", of: "removed", by: median, Unit: seconds},
				{What: "CPU at rest, of one core", of: "rest", by: median, Unit: share, Goal: goal{AtMost: 5e-4}},
				{What: "CPU of the start and 8 s more", of: "start", by: median, Unit: seconds},
				{What: "resident memory at rest", of: "resident", by: median, Unit: memory, Goal: goal{AtMost: 22 << 20, In: small.String()}},
				{What: "resident memory after the rounds", of: "resident after", by: median, Unit: memory},
			}
		},
		run: runRound,
	}
}

func roundWorlds() []world {
	return []world{{services: 1000, endpoints: 5}, {services: 10000, endpoints: 5}}
}

func runRound(ctx context.Context, o options, f *figures) error {
	f.World = o.mode + " mode, tandem run on an API server over TLS"
	if err := ip("link set lo up"); err != nil {
		return err
	}
	worlds := roundWorlds()
	if o.short {
		worlds = worlds[:1]
	}
	if o.world.services > 0 {
		worlds = []world{{services: o.world.services, endpoints: 5}}
	}
	var all []contender
	for _, w := range worlds {
		add := func(o options, name string, args ...string) {
			if o.chosen(name) {
				all = append(all, contender{name: name, round: func(ctx context.Context, s samples) error { return o.roundsOf(ctx, w, args, s) }})
			}
		}
		add(o, w.String())
		add(o, w.String()+" without failover", "--endpoint-failover", "off")
		if o.before != "" {
			add(o.withBefore(), w.String()+" before")
		}
	}
	return inRounds(ctx, cmp.Or(o.rounds, 1), all, f)
}

// roundsOf starts tandem and measures its rest and some rounds.
func (o options) roundsOf(ctx context.Context, w world, args []string, s samples) (err error) {
	server, err := apitest.Start(apitest.Options{})
	if err != nil {
		return err
	}
	defer server.Stop()
	server.Put(node())
	for i := range w.services {
		server.Put(w.service(i), w.slice(i, 0, 0))
	}
	p, err := o.follow(server, args...)
	if err != nil {
		return err
	}
	defer func() {
		p.stop()
		err = errors.Join(err, o.cleanup())
	}()
	r := &roundRun{world: w, server: server, tandem: p}
	if err := r.measure(ctx, o, s); err != nil {
		return fmt.Errorf("%w:\n%s", err, p.said())
	}
	return nil
}

// follow starts a tandem that follows an API server over TLS.
func (o options) follow(server *apitest.Server, args ...string) (*process, error) {
	kubeconfig := filepath.Join(o.dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(server.Kubeconfig("{}")), 0o600); err != nil {
		return nil, err
	}
	args = append([]string{
		"run", "--kubeconfig", kubeconfig, "--hostname-override", nodeName, "--cluster-cidr", pods.String(),
		"--proxy-mode", o.mode, "--log-level", "warn",
	}, args...)
	return launch(o.dir, exec.Command(o.tandem, args...))
}

// roundRun is a tandem that follows changes.
type roundRun struct {
	world
	server  *apitest.Server
	tandem  *process
	kernel  *netlink.Socket
	changed int // Services whose endpoints have changed so far
}

func (r *roundRun) measure(ctx context.Context, o options, s samples) error {
	if err := until(ctx, 3*time.Minute, 20*time.Millisecond, func() (bool, error) { return healthy(ctx), r.tandem.ended() }); err != nil {
		return err
	}
	rest, rounds := 60*time.Second, cmp.Or(o.changes, 10)
	if o.short {
		rest, rounds = 10*time.Second, cmp.Or(o.changes, 3)
	}
	sleep(ctx, 8*time.Second) // let memory that start-up needed go back
	started := preciseCPU(r.tandem.pid())
	s.add("start", started)
	s.add("resident", resident(r.tandem.pid()))
	sleep(ctx, rest)
	rested := preciseCPU(r.tandem.pid())
	s.add("rest", (rested-started)/rest.Seconds())
	var err error
	if r.kernel, err = netlink.Open(); err != nil {
		return err
	}
	defer r.kernel.Close()
	for range rounds {
		before := preciseCPU(r.tandem.pid())
		if err := r.round(ctx, s); err != nil {
			return err
		}
		sleep(ctx, roundAfter)
		s.add("round", preciseCPU(r.tandem.pid())-before)
	}
	s.add("resident after", resident(r.tandem.pid()))
	return nil
}

// generation is that of the kernel's ruleset, which each commit raises.
func (r *roundRun) generation(ctx context.Context) (generation uint32, err error) {
	const get, attrID = 10<<8 | 16, 1 // NFT_MSG_GETGEN, NFTA_GEN_ID
	err = r.kernel.Request(ctx, get, 0, 0, nil, func(m netlink.Message) error {
		for kind, v := range m.Attrs() {
			if kind == attrID {
				generation = netlink.Uint32(v)
			}
		}
		return nil
	})
	return generation, err
}

// round makes a round of changes.
func (r *roundRun) round(ctx context.Context, s samples) error {
	extra := r.services // the Services that come and go
	fewer := world{services: r.services, endpoints: r.endpoints - 1}
	first := r.changed
	r.changed += roundChanges
	old := func(i int) int { return (first + i) * 7919 % r.services }
	for _, kind := range []struct {
		name string
		make func(i int)
	}{
		{"created", func(i int) { r.server.Put(r.service(extra+i), r.slice(extra+i, 0, 0)) }},
		{"added", func(i int) {
			more := world{services: r.services, endpoints: r.endpoints + 1}
			slice := r.slice(old(i), 0, 0)
			slice.Endpoints = append(slice.Endpoints, more.slice(r.services+old(i), 0, 1).Endpoints[r.endpoints])
			r.server.Put(slice)
		}},
		{"removed", func(i int) {
			slice := r.slice(old(i), 0, 0)
			slice.Endpoints = slice.Endpoints[:fewer.endpoints]
			r.server.Put(slice)
		}},
		{"deleted", func(i int) { r.server.Delete(r.slice(extra+i, 0, 0), r.service(extra+i)) }},
	} {
		for i := range roundChanges {
			before, err := r.generation(ctx)
			if err != nil {
				return err
			}
			begin := time.Now()
			kind.make(i)
			err = until(ctx, 10*time.Second, 100*time.Microsecond, func() (bool, error) {
				now, err := r.generation(ctx)
				return now != before, err
			})
			if err != nil {
				return fmt.Errorf("%s %d: %w", kind.name, i, err)
			}
			s.add(kind.name, time.Since(begin).Seconds())
			sleep(ctx, time.Until(begin.Add(roundPace)))
		}
	}
	return nil
}

// preciseCPU returns the processor time in seconds that a process took so far, of threads
// that have ended, too, and that of children as cpu does.
func preciseCPU(pid int) float64 {
	var t unix.Timespec
	const scheduled = 2 // CPUCLOCK_SCHED: what the scheduler has counted, in nanoseconds
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano()).Seconds()
}
