// SPDX-License-Identifier: Apache-2.0

// Command bench measures what ci/bench/README.md claims. A benchmark declares its
// worlds, its rows and its contenders; rounds, medians, ratios, printing and the
// recorded figures are the same for all of them:
//
//	bench file ─▶ contenders ─▶ rounds, in turn ─▶ samples ─▶ figures ─▶ table
//	rows, goals                                                  │ -o    ▲
//	                                                             ▼       │
//	                                                           JSON ─────┴▶ plot
//
// Every figure is printed as it was measured, misses included. ci/bench/run builds
// the program and gives it what a benchmark needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

func main() {
	// The namespace belongs to the thread: all sockets must be opened on it.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func synopsis() error {
	var b strings.Builder
	b.WriteString("usage: bench NAME [FLAGS], or bench table FILE, or bench plot FILE; NAME is")
	for _, one := range benches() {
		fmt.Fprintf(&b, "\n  %-12s %s", one.name, one.about)
	}
	return errors.New(b.String())
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return synopsis()
	}
	if len(args) == 2 && (args[0] == "table" || args[0] == "plot") {
		f, err := readFigures(args[1])
		if err != nil {
			return err
		}
		text := f.String()
		if args[0] == "plot" {
			text, err = plot(&f)
		}
		fmt.Print(text)
		return err
	}
	for _, one := range benches() {
		if one.name == args[0] {
			return one.start(ctx, args[1:])
		}
	}
	return synopsis()
}

// start parses the flags of a benchmark, runs it and returns the figures.
func (b bench) start(ctx context.Context, args []string) (err error) {
	o, file, against := options{upstream: "ci/kubernetes/upstream", mode: "nftables"}, "", ""
	flags := flag.NewFlagSet(b.name, flag.ContinueOnError)
	flags.StringVar(&file, "o", "", "record the figures in this file, as JSON")
	flags.StringVar(&against, "against", "", "fail where a ratio to a peer is more than 5 % worse than in these figures")
	flags.BoolVar(&o.short, "short", false, "the smallest size, to see that all works")
	flags.IntVar(&o.world.services, "services", 0, "how many Services")
	flags.IntVar(&o.rounds, "rounds", 0, "how many rounds")
	flags.IntVar(&o.changes, "changes", 0, "how many changes of each contender in a round, at most")
	flags.DurationVar(&o.patience, "patience", 0, "longest time for these changes; ipvs: for each step")
	flags.DurationVar(&o.outage, "outage", -1, "kubernetes: how long the API server is gone at the end; 0 leaves that out; fleet: 0 leaves its restart out")
	flags.IntVar(&o.clients, "clients", 0, "fleet: how many clients follow the API server")
	flags.StringVar(&o.mode, "mode", o.mode, "kubernetes: Tandem's mode; with iptables only kube-proxy's iptables mode is measured with it. scale: the mode; ipvs and kernelspace without their kernel")
	only := flags.String("only", "", "measure these contenders alone, by names separated by commas")
	flags.StringVar(&o.tandem, "tandem", os.Getenv("TANDEM_BIN"), "path of tandem")
	flags.StringVar(&o.before, "before", os.Getenv("TANDEM_BEFORE"), "starts and round: path of another tandem, to be measured in turn")
	flags.StringVar(&o.fleet, "fleet", os.Getenv("FLEET_BIN"), "fleet: path of ci/bench/fleet")
	flags.StringVar(&o.kubeProxy, "kube-proxy", os.Getenv("KUBE_PROXY"), "ipvs: path of kube-proxy; without it Tandem runs alone")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.only = strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })
	if o.tandem, err = filepath.Abs(o.tandem); err != nil {
		return err
	}
	if o.dir, err = os.MkdirTemp("", "tandem-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	var recorded figures
	if against != "" {
		if recorded, err = readFigures(against); err != nil {
			return err
		}
	}
	f := figures{Bench: b.name, Machine: machine(), Rounds: 1, Rows: b.rows(o)}
	if err := b.run(ctx, o, &f); err != nil {
		return err
	}
	fmt.Print(&f)
	if file != "" {
		err = f.record(file)
	}
	if against == "" {
		return err
	}
	return errors.Join(err, f.against(&recorded, against))
}
