// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const help = `usage: cluster [flags] VERB
  up              bring a cluster up; one that runs is replaced
  down            remove everything
  in MACHINE CMD  run a command in a machine: control, node-1, ...
  e2e             run upstream's tests for proxies and modes, each in a new cluster
  questions       ask the cluster that runs by kubectl tandem: verbs, pages, connections as they come
  uninstall       remove Tandem from the cluster that runs as the guide says, and show that nodes are clean
  neighbours      run flannel, MetalLB, Prometheus and metrics-server in the cluster that runs
  life            upgrades, restarts and switches, with connections held and made all the time
  table           write the tables of README.md from the figures
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	// The two steps in which a machine starts (machine_linux.go), and programs of the control machine and of pods.
	if len(args) > 1 && args[0] == "machine" {
		return enterGroups(args[1], args[2:])
	}
	if len(args) > 1 && args[0] == "boot" {
		return boot(args[1])
	}
	if len(args) > 1 && args[0] == "cloud" {
		return runCloud(args[1])
	}
	if len(args) > 1 && args[0] == "load" {
		return runLoad(ctx, args[1:])
	}
	flags := flag.NewFlagSet("cluster", flag.ExitOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), help)
		flags.PrintDefaults()
	}
	c := &cluster{out: os.Stderr}
	var s shape
	t := suite{}
	flags.StringVar(&c.State, "state", cmp.Or(os.Getenv("TANDEM_CLUSTER"), "/var/tmp/tandem-cluster"), "the folder for everything; $TANDEM_CLUSTER")
	flags.StringVar(&c.repo, "repo", ".", "the tree whose Tandem is installed")
	flags.IntVar(&s.Nodes, "nodes", 3, "how many nodes")
	flags.IntVar(&s.Zones, "zones", 3, "over how many zones they are spread")
	flags.BoolVar(&s.Single, "single-stack", false, "IPv4 alone")
	flags.StringVar(&c.kubernetes, "kubernetes", "", "the version of API server, controllers, scheduler and kubelets, such as 1.34.10 (default that of the tests)")
	flags.StringVar(&c.proxy.Name, "proxy", tandem, "tandem, kube-proxy or none")
	flags.StringVar(&c.proxy.Mode, "mode", "nftables", "the proxy's mode")
	flags.StringVar(&t.Set, "set", "network", "for e2e: the set of tests of specs.go")
	flags.StringVar(&t.Runs, "runs", "", "for e2e: such as kube-proxy/nftables,tandem/iptables (default those of the set, or the one that -here finds)")
	flags.StringVar(&t.Focus, "focus", "", "for e2e: only tests that match; no figures are written")
	flags.DurationVar(&t.Limit, "limit", 0, "for e2e: how long the tests of one run may take (default that of the set)")
	flags.IntVar(&t.Procs, "procs", 8, "for e2e: tests at once")
	flags.BoolVar(&t.Keep, "keep", false, "for e2e: leave the last cluster running")
	flags.BoolVar(&t.Here, "here", false, "for e2e: use the cluster that runs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if c.plan, err = newPlan(s); err != nil {
		return err
	}
	if _, err := os.Stat(c.repo + "/ci/cluster/build"); err != nil {
		return fmt.Errorf("-repo is no tree of Tandem: %w", err)
	}
	switch flags.Arg(0) {
	case "up":
		if err := c.up(ctx); err != nil {
			return err
		}
		fmt.Printf("\nexport KUBECONFIG=%s\n%s get nodes\nci/cluster/run in node-1 nft list tables\nmake cluster-down\n", c.layout.kubeconfig(), c.tool("upstream", "kubectl"))
		return nil
	case "down":
		return down(c.State)
	case "in":
		if flags.NArg() < 3 {
			return errors.New("in MACHINE COMMAND")
		}
		cmd, err := c.in(ctx, flags.Arg(1), flags.Args()[2:]...)
		if err != nil {
			return err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd.Run()
	case "e2e":
		return t.run(ctx, c)
	case "life":
		return c.life(ctx)
	case "questions":
		return c.questions(ctx)
	case "neighbours":
		return c.neighbours(ctx)
	case "uninstall":
		return c.uninstall(ctx)
	case "table":
		return writeTables(c.repo + "/ci/cluster")
	}
	flags.Usage()
	return errors.New("no such verb")
}
