// SPDX-License-Identifier: Apache-2.0

// Command test runs all tests of Tandem on this machine, in two parts: `make test`,
// which is for people, and `make verify`, which is the rest.
//
//	go run ./ci/test            formatting, vet, unit tests, the corpus on all simulators and on this kernel
//	go run ./ci/test -verify    lint for all targets, the tests of later.go, chart, packages, race detector, other kernels
//
// It prints a line for every step and every package as it goes, the output of
// failed tests at the end, and what was skipped with the reason.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	verify := flag.Bool("verify", false, "run what `make test` leaves out")
	flag.Parse()
	r := newRunner(os.Stdout)
	steps := r.test
	if *verify {
		steps = r.verify
	}
	if err := steps(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
		os.Exit(1)
	}
	if !r.summary() {
		os.Exit(1)
	}
}

// test is what `make test` runs.
func (r *runner) test(ctx context.Context) error {
	all, err := r.packages(ctx)
	if err != nil {
		return err
	}
	declared, err := declarations(os.DirFS("."))
	if err != nil {
		return err
	}
	now, slow, err := split(all, later(), declared)
	if err != nil {
		return err
	}
	r.step(ctx, "set-up", "ci/setup/run", "test")
	r.format(ctx)
	r.build(ctx)
	r.step(ctx, "vet", "go", "vet", "./...")
	r.goTest(ctx, "tests", ".", append([]string{"-skip", slow}, now...)...)
	r.leave("left to `make soak`: each scenario with both variants of iptables, and both redirections of userspace: here it is with one")
	r.leave("left to `make verify`: lint for four targets, the race detector, chart, packages, other kernels, and")
	for _, l := range later() {
		r.leave(fmt.Sprintf("  %s: %s", l.name(), l.why))
	}
	return ctx.Err()
}

// verify is what `make verify` runs.
func (r *runner) verify(ctx context.Context) error {
	r.step(ctx, "set-up", "ci/setup/run")
	r.both(func(r *runner) { r.analyse(ctx) }, func(r *runner) { r.machines(ctx) })
	r.slow(ctx, true)
	for _, l := range later() {
		if l.soak {
			r.leave(fmt.Sprintf("left to `make soak`: %s: %s", l.name(), l.why))
		}
	}
	return ctx.Err()
}

// analyse is the part of verify that the processor is busy with.
func (r *runner) analyse(ctx context.Context) {
	r.step(ctx, "lint for all targets", "ci/lint/run")
	r.race(ctx)
	for _, module := range []string{"installers/kubernetes/render", "ci/dist"} {
		r.stepIn(ctx, module, "vet "+module, "go", "vet", "./...")
		r.goTest(ctx, "tests of the module "+module, module, "-timeout", "30m", "-skip", "^TestReproducible$", "./...")
	}
	r.leave("ci/dist TestReproducible: make release builds everything twice and compares")
	// The same runs on every machine; `make simulate` and `make soak` look for others.
	r.goTest(ctx, "simulation", ".", "-count=1", "-timeout", "40m", "-run", "TestSimulation", "./ci/simulate", "-seeds", "2", "-for", "30m")
	r.goTest(ctx, "random worlds", ".", append([]string{"-count=1", "-run", "TestCorpus$/^random$"}, append(backends(), "-worlds", "100", "-from", "1000")...)...)
}

// machines is the part of verify that runs programs on kernels, most of the time waiting.
func (r *runner) machines(ctx context.Context) {
	r.step(ctx, "build kube-apiserver, etcd and kube-proxy, once", "ci/kubernetes/upstream/build")
	r.step(ctx, "build an old etcd, once", "ci/kubernetes/oldetcd/build")
	var whole []string
	for _, l := range later() {
		if l.tests == "" {
			whole = append(whole, "./"+l.pkg)
		}
	}
	r.goTest(ctx, "slow packages", ".", whole...)
	r.slow(ctx, false)
	r.leave("two thirds of the scenarios with a real API server: make soak")
	r.leave("upstream's network tests in a whole cluster are run by hand: make e2e, or ci/cluster/run -set sample e2e")
	r.step(ctx, "IPVS and ipsets, on a kernel of their own", "ci/guest/run")
	r.matrix(ctx)
}

// slow runs the single tests of later that run alone, or the others.
func (r *runner) slow(ctx context.Context, alone bool) {
	for _, l := range later() {
		if l.tests != "" && l.alone == alone && !l.soak {
			r.goTest(ctx, "slow tests of "+l.pkg, ".", "-run", pattern(strings.Fields(l.tests)), "./"+l.pkg)
		}
	}
}

// backends are the packages that compare a mode with the reference.
func backends() []string {
	return []string{"./linux/nftables", "./linux/iptables", "./linux/ipvs", "./linux/userspace", "./windows/hns"}
}

// race runs core and platform under the race detector, which needs a C compiler, but for
// the tests that slow runs: these wait for other programs, a compiler or Chromium. Of large
// Services the processor time is limited, and here most of it would be the detector's.
func (r *runner) race(ctx context.Context) {
	r.setenv("CGO_ENABLED=1")
	defer r.setenv("CGO_ENABLED=0")
	r.goTest(ctx, "core under the race detector", ".", "-race", "-skip", pattern(single(later()))+"|^Test(Suite|Corpus|GoldensOfASuite)$/^large", "./core/...", "./platform/...")
}

// matrix runs a sample of every mode on every kernel that takes a few minutes.
func (r *runner) matrix(ctx context.Context) {
	minutes := os.Getenv("VERIFY_MATRIX_MINUTES")
	if minutes == "" {
		minutes = "2"
	}
	r.setenv("MATRIX_MINUTES=" + minutes)
	r.step(ctx, "modes and kernels, what begins within "+minutes+" min (all: make matrix)", "ci/guest/matrix")
}
