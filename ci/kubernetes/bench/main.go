package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

// options are what a run is made of.
type options struct {
	tandem, upstream string // the program, and the folder ci/kubernetes/upstream
	mode             string // Tandem's
	world            world
	rounds           int
	changes          int           // per round and proxy, at most
	patience         time.Duration // for all changes of a round and proxy
	outage           time.Duration // of the API server, at the end
	dir              string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context) (err error) {
	o := options{world: world{services: 10000, endpoints: 5}, rounds: 3, changes: 100, patience: 45 * time.Second, outage: time.Minute}
	short := flag.Bool("short", false, "a quick look: 1,000 Services, one round, a short outage")
	flag.StringVar(&o.mode, "tandem-mode", "nftables", "the mode of Tandem; with iptables only kube-proxy's iptables mode is beside it")
	flag.IntVar(&o.world.services, "services", o.world.services, "how many Services")
	flag.IntVar(&o.rounds, "rounds", o.rounds, "how many rounds")
	flag.DurationVar(&o.outage, "outage", o.outage, "how long the API server is gone at the end; 0 leaves that out")
	flag.DurationVar(&o.patience, "patience", o.patience, "longest time for the changes of one proxy in one round")
	flag.Parse()
	if flag.NArg() != 2 {
		return errors.New("usage: bench [flags] PATH-OF-TANDEM FOLDER-OF-UPSTREAM")
	}
	o.tandem, o.upstream = flag.Arg(0), flag.Arg(1)
	if *short {
		o.world.services, o.rounds, o.changes, o.patience, o.outage = 1000, 1, 30, 15*time.Second, 10*time.Second
	}
	if o.dir, err = os.MkdirTemp("", "tandem-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	if o.tandem, err = filepath.Abs(o.tandem); err != nil {
		return err
	}
	return bench(ctx, o)
}
