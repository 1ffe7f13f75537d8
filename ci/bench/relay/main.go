// Command relay measures the userspace mode beside nginx (stream) and HAProxy:
// connections per second, throughput and memory of idle connections, all on the
// loopback interface of a namespace of its own. Proxy, clients and endpoint share
// the processors. Every figure is printed as it was measured, misses included.
//
// "CPU of one" is the processor time that the proxy's processes take for a
// connection with a question and an answer: work of others on the machine, which
// lowers the connections per second, changes it little. "Bytes per idle one" is
// by how much the processes grow for 1,000 connections after all that load: one
// that has room left from it does not grow at all.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: relay DIR-OF-BINARIES [PROXY...]")
		os.Exit(2)
	}
	run := func() error { return bench(ctx, os.Args[1], os.Args[2:]) }
	if os.Args[1] == aloneVerb {
		run = func() error { return serveAlone(ctx) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

// rounds is how often each proxy is measured, in turn with the others, so that
// whatever else the machine does meets all of them; the medians count.
const rounds = 5

// bench measures all proxies, or only those that are named.
func bench(ctx context.Context, dir string, only []string) error {
	if err := prepare(); err != nil {
		return err
	}
	e, err := newEndpoint()
	if err != nil {
		return err
	}
	defer e.close()
	fmt.Printf("userspace mode, %d cores, %s; medians of %d\n\n", runtime.NumCPU(), runtime.Version(), rounds)
	var all []*contender
	for _, p := range []proxy{direct(), alone(), tandem(dir), nginx(dir), haproxy(dir)} {
		if len(only) > 0 && !slices.Contains(only, p.name) {
			continue
		}
		run, err := p.start(ctx)
		if err != nil {
			fmt.Printf("%s is not measured: %v\n", p.name, err)
			continue
		}
		defer run.stop()
		all = append(all, &contender{name: p.name, running: run})
	}
	for range rounds {
		for _, c := range all {
			if err := c.round(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return report(all)
}

// contender is a proxy at work and what was measured of it.
type contender struct {
	name string
	*running
	rates, costs, gigabits []float64
}

func (c *contender) round(ctx context.Context) error {
	before := used(c.pids())
	made, rate, err := connections(ctx, c.at, time.Second)
	if err != nil {
		return err
	}
	cost := (used(c.pids()) - before) / time.Duration(made)
	gigabits, err := throughput(ctx, c.at, time.Second)
	c.rates, c.costs, c.gigabits = append(c.rates, rate), append(c.costs, float64(cost)), append(c.gigabits, gigabits)
	return err
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

func report(all []*contender) error {
	fmt.Printf("%-26s %14s %14s %12s %18s\n", "", "connections/s", "CPU of one", "Gbit/s", "bytes per idle one")
	found := map[string]figures{}
	for _, c := range all {
		idle, err := idle(c.running)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		f := figures{median(c.rates), median(c.gigabits), idle}
		found[c.name] = f
		cost := time.Duration(median(c.costs)).Round(time.Microsecond)
		fmt.Printf("%-26s %14.0f %14s %12.1f %18d\n", c.name, f.connections, cost, f.gigabits, f.idle)
	}
	verdict(found)
	return nil
}

// figures are what is measured of one proxy.
type figures struct {
	connections, gigabits float64
	idle                  int
}

func verdict(all map[string]figures) {
	const share, memory = 0.9, 20 << 10
	ours, ok := all["tandem"]
	if !ok {
		return
	}
	fmt.Println()
	for _, peer := range []string{"nginx", "haproxy"} {
		if theirs, ok := all[peer]; ok {
			goal("connections/s, against "+peer, ours.connections/theirs.connections, share)
			goal("throughput, against "+peer, ours.gigabits/theirs.gigabits, share)
		}
	}
	fmt.Printf("  %-40s %d bytes  [goal <= %d: %s]\n", "memory of an idle connection", ours.idle, memory, met(ours.idle <= memory))
}

func goal(what string, ratio, least float64) {
	fmt.Printf("  %-40s %.2fx  [goal >= %.1fx: %s]\n", what, ratio, least, met(ratio >= least))
}

func met(ok bool) string {
	if ok {
		return "met"
	}
	return "MISSED"
}
