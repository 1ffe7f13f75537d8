// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// atStart is the time after the start that still counts as start-up, atRest how long
// an idle proxy is measured.
const atStart, atRest = 5 * time.Second, 5 * time.Second

// kubernetesBench measures Tandem and kube-proxy on one API server, in one run:
// each proxy in turn on a node of its own, several rounds, in an order that
// rotates.
//
//	kube-apiserver ──watch──▶ proxy ──▶ rules of the node
//	      ▲                                  │
//	   a slice is written             connections from a pod, all the time:
//	      │                           the first to a new endpoint, the last to an old one
//	      └── acknowledged: time 0 ◀─────────┘
//
// Everything is measured by a client of a Service, never by what a proxy reports
// of itself. All endpoints are real: one server has all their addresses. Every
// write replaces all endpoints of one Service, so that the next connection shows
// on which side of the change it is.
func kubernetesBench() bench {
	return bench{
		name: "kubernetes", about: "Tandem compared with kube-proxy on a real API server",
		rows: kubernetesRows, run: runKubernetes,
	}
}

func kubernetesRows(o options) []row {
	rows := []row{
		{What: "slice written to first connection, p50", of: "first", by: median, Unit: seconds, Ratio: true, Goal: goal{AtMost: 10e-3}},
		{What: "slice written to first connection, p99", of: "first", by: p99, Unit: seconds, Ratio: true, Goal: goal{AtMost: 25e-3}},
		{What: "slice written to last connection to a removed endpoint, p50", of: "last", by: median, Unit: seconds, Ratio: true},
		{What: "slice written to last connection to a removed endpoint, p99", of: "last", by: p99, Unit: seconds, Ratio: true},
		{What: "connections that failed during the changes", of: "failed", by: total},
		{What: "process start to everything programmed", of: "start", by: median, Unit: seconds, Ratio: true, Goal: goal{AtMost: 1}},
		{What: "CPU of that and " + atStart.String() + " more, children included", of: "start CPU", by: median, Unit: seconds, Ratio: true},
		{What: "CPU of a change, children included", of: "change CPU", by: median, Unit: seconds, Ratio: true, Goal: goal{AtMost: 2e-3}},
		{What: "CPU at rest, of one core", of: "rest CPU", by: median, Unit: share},
		{What: "resident memory at rest", of: "resident", by: median, Unit: memory, Ratio: true, Goal: goal{AtMost: 60 << 20}},
		{What: "resident memory after the changes", of: "resident after", by: median, Unit: memory, Ratio: true, Goal: goal{AtMost: 60 << 20}},
		{What: "peak with children", of: "peak", by: median, Unit: memory, Ratio: true},
		{What: "first packet, beyond connection tracking alone", of: "packet", by: median, Unit: seconds, Ratio: true},
		{What: "changes measured", of: "first", by: number},
	}
	if o.mode == iptablesMode { // separate goals: the least ratio of kube-proxy's best value to Tandem's
		for i := range rows {
			rows[i].Goal = goal{Times: map[string]float64{"start": 2, "change CPU": 5, "packet": 5}[rows[i].of]}
		}
	}
	return rows
}

// kubernetesRun is this benchmark under way.
type kubernetesRun struct {
	options
	cluster    *cluster.Cluster
	generation []int // of the endpoints of each Service, on the API server
	changed    int   // Services so far
}

// startCluster starts the API server of a run, in the run's folder. The caller closes it.
func (o options) startCluster(ctx context.Context, with cluster.Options) (*cluster.Cluster, cluster.Binaries, error) {
	binaries, err := cluster.Find(ctx, o.upstream)
	if err != nil {
		return nil, binaries, err
	}
	dir := filepath.Join(o.dir, "cluster")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, binaries, err
	}
	with.Dir, with.Binaries = dir, binaries
	c, err := cluster.Start(ctx, with)
	return c, binaries, err
}

func runKubernetes(ctx context.Context, o options, f *figures) (err error) {
	defaults := options{world: world{services: 10000}, rounds: 3, changes: 100, patience: 45 * time.Second, outage: time.Minute}
	if o.short {
		defaults = options{world: world{services: 1000}, rounds: 1, changes: 30, patience: 15 * time.Second, outage: 10 * time.Second}
	}
	o.world = world{services: cmp.Or(o.world.services, defaults.world.services), endpoints: 5}
	o.rounds, o.changes, o.patience = cmp.Or(o.rounds, defaults.rounds), cmp.Or(o.changes, defaults.changes), cmp.Or(o.patience, defaults.patience)
	if o.outage < 0 {
		o.outage = defaults.outage
	}
	c, binaries, err := o.startCluster(ctx, cluster.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	version, err := c.Client().Discovery().ServerVersion()
	if err != nil {
		return err
	}
	f.World, f.Machine = o.world.String(), f.Machine+", kube-apiserver and kube-proxy "+version.GitVersion
	if err := fill(ctx, c.Client(), o.world); err != nil {
		return fmt.Errorf("fill the API server: %w", err)
	}
	kubeconfig, err := c.Kubeconfig("system:kube-proxy")
	if err != nil {
		return err
	}
	proxies, err := o.proxies(binaries.Proxy, kubeconfig, f)
	if err != nil {
		return err
	}
	r := &kubernetesRun{options: o, cluster: c, generation: make([]int, o.world.services)}
	var all []contender
	for _, p := range proxies {
		if !o.chosen(p.name) {
			continue
		}
		all = append(all, contender{name: p.name, peer: p.peer, round: func(ctx context.Context, s samples) error { return r.round(ctx, p, s) }})
	}
	if err := inRounds(ctx, o.rounds, all, f); err != nil || o.outage == 0 {
		return err
	}
	note, err := r.withoutServer(ctx, proxies[0])
	f.Notes = append(f.Notes, note)
	return err
}

// round measures one proxy on a new node.
func (r *kubernetesRun) round(ctx context.Context, to kubernetesProxy, s samples) (err error) {
	n, err := newTestNode(ctx, r.cluster)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.prepareDrop(); err != nil {
		return err
	}
	bare, err := n.firstPacket(r.world)
	if err != nil {
		return err
	}
	begin := time.Now()
	p, err := r.launch(n, to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop(20*time.Second)) }()
	u := watchUsage(p.PID())
	defer func() { s.add("peak", u.end()) }()
	if err := n.programmed(ctx, r.world, p); err != nil {
		return err
	}
	took := time.Since(begin)
	late, err := n.complete(ctx, r.world)
	if err != nil {
		return err
	}
	if late > 0 {
		took = time.Since(begin)
	}
	s.add("start", took.Seconds())
	sleep(ctx, atStart)
	started := cpu(p.PID())
	s.add("start CPU", started)
	s.add("resident", resident(p.PID()))
	sleep(ctx, atRest)
	rested := cpu(p.PID())
	s.add("rest CPU", (rested-started)/atRest.Seconds())
	changes, err := r.changesOf(ctx, n, s)
	if err != nil {
		return err
	}
	s.add("change CPU", (cpu(p.PID())-rested)/float64(changes))
	s.add("resident after", resident(p.PID()))
	packet, err := n.firstPacket(r.world)
	s.add("packet", packet-bare)
	return err
}

func (r *kubernetesRun) launch(n *testNode, p kubernetesProxy) (*cluster.Process, error) {
	cmd, err := p.command()
	if err != nil {
		return nil, err
	}
	log := filepath.Join(r.dir, "proxy.log")
	if err := os.RemoveAll(log); err != nil {
		return nil, err
	}
	return cluster.Run(n.net, lab.Node, log, cmd)
}
