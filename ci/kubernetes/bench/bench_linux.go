package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
)

func bench(ctx context.Context, o options) (err error) {
	binaries, err := cluster.Find(ctx, o.upstream)
	if err != nil {
		return err
	}
	dir := filepath.Join(o.dir, "cluster")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Binaries: binaries})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	version, err := c.Client().Discovery().ServerVersion()
	if err != nil {
		return err
	}
	fmt.Printf("%s, kernel %s, %d cores, %s, kube-apiserver and kube-proxy %s\n", o.world, kernel(), runtime.NumCPU(), runtime.Version(), version.GitVersion)
	begin := time.Now()
	if err := fill(ctx, c.Client(), o.world); err != nil {
		return fmt.Errorf("fill the API server: %w", err)
	}
	fmt.Printf("API server filled in %s\n", show(time.Since(begin)))
	kubeconfig, err := c.Kubeconfig("system:kube-proxy")
	if err != nil {
		return err
	}
	all, err := o.contenders(binaries.Proxy, kubeconfig)
	if err != nil {
		return err
	}
	r := &run{options: o, cluster: c, generation: make([]int, o.world.services)}
	results := make([]result, len(all))
	for i := range all {
		results[i].contender = all[i]
	}
	for n := range o.rounds {
		for i := range all {
			k := (i + n) % len(all)
			fmt.Printf("round %d, load %s: %s\n", n+1, load(), all[k].name)
			if err := r.round(ctx, &results[k]); err != nil {
				if !all[k].ours && ctx.Err() == nil { // the others' failures are theirs
					fmt.Printf("round %d: %s failed: %v\n", n+1, all[k].name, err)
					continue
				}
				return fmt.Errorf("%s: %w", all[k].name, err)
			}
		}
	}
	fmt.Println()
	fmt.Print(table(results, o.mode))
	if o.outage == 0 {
		return nil
	}
	return r.gone(ctx, all[0])
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}

// load is how many processes want the processors, which says how far the
// figures can be trusted.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
