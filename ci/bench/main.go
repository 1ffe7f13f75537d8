package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

func main() {
	// The namespace belongs to the thread: all sockets must be opened on it.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := bench(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: bench PATH-OF-TANDEM [nftables | iptables]")
	}
	fmt.Printf("%s, %d cores, %s\n\n", kernel(), runtime.NumCPU(), runtime.Version())
	only := strings.Join(args[1:], " ")
	if only != "iptables" {
		if err := benchNFTables(ctx, args[0]); err != nil {
			return err
		}
	}
	if only == "nftables" {
		return nil
	}
	return compareIPTables(ctx, world{services: 10000, endpoints: 5})
}

func benchNFTables(ctx context.Context, tandem string) error {
	fmt.Println("nftables mode")
	var p50 []time.Duration
	for _, n := range []int{1000, 10000, 50000} {
		median, err := scale(ctx, world{services: n, endpoints: 5})
		if err != nil {
			return fmt.Errorf("%d Services: %w", n, err)
		}
		p50 = append(p50, median)
	}
	goal("one endpoint replaced, 50,000 Services against 1,000", fmt.Sprintf("%.2fx", float64(p50[2])/float64(p50[0])), p50[2] <= 2*p50[0], "≤ 2x")
	if err := wide(ctx); err != nil {
		return fmt.Errorf("wide Service: %w", err)
	}
	return daemon(ctx, tandem, world{services: 10000, endpoints: 5})
}

// scale measures the path from tracker to kernel in one size of cluster.
func scale(ctx context.Context, w world) (median time.Duration, err error) {
	r, err := newRig(ctx, w)
	if err != nil {
		return 0, err
	}
	defer r.close()
	fmt.Printf("%d Services x %d endpoints\n", w.services, w.endpoints)
	r.load()
	cold, work, err := r.apply()
	if err != nil {
		return 0, err
	}
	programmed := fmt.Sprintf("%s, %d objects in %d transactions", show(cold), work.Ops, work.Commits)
	if w.services == 10000 {
		goal("cold programming, inputs read", programmed, cold <= time.Second, "≤ 1 s")
	} else {
		plain("cold programming, inputs read", programmed)
	}

	replaced, ops, err := r.changes(500, func(i int) *model.Slice { return w.slice(i*7%w.services, 1, 1+i) })
	if err != nil {
		return 0, err
	}
	median = replaced.quantile(.5)
	goal("one endpoint replaced, event to acknowledgement", fmt.Sprintf("%s; %d writes", replaced, ops), median <= time.Millisecond, "p50 ≤ 1 ms")

	scaled, ops, err := r.changes(200, func(i int) *model.Slice {
		s := w.slice(11, 0, 0)
		s.Endpoints = s.Endpoints[:w.endpoints-i%2]
		return s
	})
	if err != nil {
		return 0, err
	}
	plain("one endpoint added or removed", fmt.Sprintf("%s; %d writes", scaled, ops))
	took, err := r.audit()
	if err != nil {
		return 0, err
	}
	plain("audit: reading and comparing beside the changes", show(took))
	return median, restart(ctx, w, r)
}

// restart brings the world back to what it was at first, and measures a new
// start on it.
func restart(ctx context.Context, w world, r *rig) error {
	r.load()
	if _, _, err := r.apply(); err != nil {
		return err
	}
	begin := time.Now()
	again, err := newRig(ctx, w)
	if err != nil {
		return err
	}
	defer again.backend.Close()
	adopted := time.Since(begin)
	again.load()
	took, work, err := again.apply()
	if err != nil {
		return err
	}
	goal("restart: writes", fmt.Sprintf("%d; %s to read back, %s to compare", work.Ops, show(adopted), show(took)), work.Ops == 0, "0")
	fmt.Println()
	return nil
}

// wide measures a Service with very many endpoints.
func wide(ctx context.Context) error {
	w := world{services: 1, endpoints: 5000}
	r, err := newRig(ctx, w)
	if err != nil {
		return err
	}
	defer r.close()
	r.load()
	if _, _, err := r.apply(); err != nil {
		return err
	}
	took, ops, err := r.changes(200, func(i int) *model.Slice { return w.slice(0, 1, 1+i) })
	if err != nil {
		return err
	}
	fmt.Println("1 Service x 5,000 endpoints")
	goal("one endpoint replaced: writes", fmt.Sprint(ops), ops <= 5, "≤ 5")
	plain("one endpoint replaced, event to acknowledgement", took.String())
	fmt.Println()
	return nil
}

func goal(what, got string, met bool, want string) {
	mark := "met"
	if !met {
		mark = "MISSED"
	}
	fmt.Printf("  %-50s %s  [goal %s: %s]\n", what, got, want, mark)
}

func plain(what, got string) { fmt.Printf("  %-50s %s\n", what, got) }

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return "kernel " + string(b[:len(b)-1])
}
