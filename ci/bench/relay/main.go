// Command relay measures the userspace mode beside nginx (stream) and HAProxy:
// connections per second, throughput and memory of idle connections, all on the
// loopback interface of a namespace of its own. Proxy, clients and endpoint share
// the processors. Every figure is printed as it was measured, misses included.
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
		fmt.Fprintln(os.Stderr, "usage: relay DIR-OF-BINARIES")
		os.Exit(2)
	}
	if err := bench(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
}

// rounds is how often each proxy is measured; the median counts.
const rounds = 3

func bench(ctx context.Context, dir string) error {
	if err := prepare(); err != nil {
		return err
	}
	e, err := newEndpoint()
	if err != nil {
		return err
	}
	defer e.close()
	fmt.Printf("userspace mode, %d cores, %s; medians of %d\n\n", runtime.NumCPU(), runtime.Version(), rounds)
	fmt.Printf("%-26s %14s %12s %18s\n", "", "connections/s", "Gbit/s", "bytes per idle one")
	all := []proxy{direct(), tandem(dir), nginx(dir), haproxy(dir)}
	figures := map[string]figures{}
	for _, p := range all {
		f, err := p.measure(ctx, e)
		if err != nil {
			fmt.Printf("%-26s not measured: %v\n", p.name, err)
			continue
		}
		figures[p.name] = f
		fmt.Printf("%-26s %14.0f %12.1f %18d\n", p.name, f.connections, f.gigabits, f.idle)
	}
	verdict(figures)
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

// measure starts a proxy, measures it and ends it.
func (p proxy) measure(ctx context.Context, e *endpoint) (f figures, err error) {
	run, err := p.start(ctx, e)
	if err != nil {
		return f, err
	}
	defer run.stop()
	var rates, bits []float64
	for range rounds {
		rate, err := connections(ctx, run.at, 2*time.Second)
		if err != nil {
			return f, err
		}
		gigabits, err := throughput(ctx, run.at, 2*time.Second)
		if err != nil {
			return f, err
		}
		rates, bits = append(rates, rate), append(bits, gigabits)
	}
	slices.Sort(rates)
	slices.Sort(bits)
	f.connections, f.gigabits = rates[rounds/2], bits[rounds/2]
	f.idle, err = idle(run)
	return f, err
}
