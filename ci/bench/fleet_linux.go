// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/kubernetes/fleet"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// Commands to a running fleet.
const (
	fleetProcess  = 250 // clients of a process
	fleetHeadless = 10  // one headless Service for so many others
	fleetRolling  = 50  // a rolling update changes one Service of so many
	fleetRest     = 10 * time.Second
	fleetMemory   = "GOMEMLIMIT=4000MiB" // of a process of clients, far from what they use
)

// fleetServer are the API server's own limits, without which a fleet that lists at once
// keeps it from its own requests when it starts: it ends with 255.
var fleetServer = []string{"--enable-priority-and-fairness=true", "--max-requests-inflight=400", "--max-mutating-requests-inflight=200"}

// fleetBench measures what many proxies cost one API server, with Tandem's client and
// with kube-proxy's (ci/kubernetes/fleet):
//
//	kube-apiserver ──250 connections, 4 watches each──▶ fleet
//	     ▲         ──…
//	     └── one change; a rolling update; an end and a start of the server
func fleetBench() bench {
	return bench{
		name: "fleet", about: "load of many proxies on one API server, compared with kube-proxy's client",
		rows: func(options) []row {
			return []row{
				{What: "bytes of a client's start", of: "start bytes", by: median, Unit: memory, Ratio: true},
				{What: "API server: CPU of a client's start", of: "start CPU", by: median, Unit: seconds, Ratio: true},
				{What: "API server: memory of a client that watches", of: "client memory", by: median, Unit: memory, Ratio: true},
				{What: "API server: CPU at rest with all clients, of one core", of: "rest CPU", by: median, Unit: share, Ratio: true},
				{What: "one change, from its acknowledgement to the last client, p50", of: "change", by: median, Unit: seconds, Ratio: true},
				{What: "same, the slowest", of: "change", by: most, Unit: seconds, Ratio: true},
				{What: "bytes of a change for each client", of: "change bytes", by: median, Unit: memory, Ratio: true},
				{What: "rolling update: API server's CPU of a change for all clients", of: "rolling CPU", by: median, Unit: seconds, Ratio: true},
				{What: "rolling update: from the first write to the last client", of: "rolling time", by: median, Unit: seconds, Ratio: true},
				{What: "same: from the last acknowledgement", of: "rolling", by: median, Unit: seconds, Ratio: true},
				{What: "same: CPU of a change for each client", of: "rolling client CPU", by: median, Unit: seconds, Ratio: true},
				{What: "rolling update: bytes of a change for each client", of: "rolling bytes", by: median, Unit: memory, Ratio: true},
				{What: "API server restarted: from ready to the last client knowing a change", of: "restart", by: median, Unit: seconds, Ratio: true},
				{What: "same: starts of the API server until one was ready", of: "restart starts", by: most},
				{What: "same: full lists of a client", of: "restart lists", by: median},
				{What: "same: bytes for each client", of: "restart bytes", by: median, Unit: memory, Ratio: true},
				{What: "same: API server's CPU until then", of: "restart CPU", by: median, Unit: seconds, Ratio: true},
				{What: "same: API server's memory then", of: "restart memory", by: median, Unit: memory, Ratio: true},
			}
		},
		run: runFleet,
	}
}

func runFleet(ctx context.Context, o options, f *figures) (err error) {
	services, clients := 10000, 1000
	if o.short {
		services, clients = 1000, 100
	}
	o.world, o.clients = world{services: cmp.Or(o.world.services, services), endpoints: 5}, cmp.Or(o.clients, clients)
	o.changes = cmp.Or(o.changes, 10)
	c, _, err := o.startCluster(ctx, cluster.Options{Server: fleetServer, Ready: fleetTime})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	node, err := lab.New(ctx, lab.Plan{Node: []netip.Addr{nodeIP}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if err := errors.Join(c.Join(node), fill(ctx, c.Client(), o.world), fillHeadless(ctx, c, o.world)); err != nil {
		return fmt.Errorf("fill the API server: %w", err)
	}
	kubeconfig, err := c.Kubeconfig("system:kube-proxy")
	if err != nil {
		return err
	}
	f.World = fmt.Sprintf("%d clients, %s and %d headless ones", o.clients, o.world, o.world.services/fleetHeadless)
	r := &fleetRun{options: o, cluster: c, node: node, kubeconfig: kubeconfig}
	var all []contender
	for _, kind := range []struct{ name, flag string }{{"Tandem", fleet.Tandem}, {"kube-proxy's client", fleet.ClientGo}} {
		if o.chosen(kind.name) {
			all = append(all, contender{name: kind.name, peer: kind.flag != fleet.Tandem, round: func(ctx context.Context, s samples) error { return r.round(ctx, kind.flag, s) }})
		}
	}
	return inRounds(ctx, cmp.Or(o.rounds, 1), all, f)
}

// fillHeadless adds headless Services, with a slice each.
func fillHeadless(ctx context.Context, c *cluster.Cluster, w world) error {
	return each(ctx, w.services/fleetHeadless, func(i int) error {
		svc, slice := w.service(i), w.slice(i, 0, 0)
		svc.Name, svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "headless-"+svc.Name, corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		slice.Name, slice.Labels = "headless-"+slice.Name, map[string]string{"kubernetes.io/service-name": svc.Name, corev1.IsHeadlessService: ""}
		_, err := c.Client().CoreV1().Services(svc.Namespace).Create(ctx, svc, metav1.CreateOptions{})
		if err == nil {
			_, err = c.Client().DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
		}
		return err
	})
}

// fleetRun is the benchmark under way.
type fleetRun struct {
	options
	cluster    *cluster.Cluster
	node       *lab.Net
	kubeconfig string
	generation int // of endpoints, at each change another

	processes []*cluster.Process
	sockets   []string
}

// fleetReport is the sum of what the processes report: ci/bench/fleet.
type fleetReport struct {
	Synced, Reached           int
	Last, Bytes, Lists, Dials int64
}

// fleetTime bounds each step.
const fleetTime = 20 * time.Minute

// round measures one kind of client, on an API server that has just started.
func (r *fleetRun) round(ctx context.Context, kind string, s samples) (err error) {
	if _, err := r.restart(ctx); err != nil {
		return err
	}
	sleep(ctx, fleetRest/2)
	server := r.cluster.ServerPID()
	memory, took := resident(server), cpu(server)
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.start(kind); err != nil {
		return err
	}
	n := float64(r.clients)
	started, err := r.until(ctx, func(f fleetReport) bool { return f.Synced == r.clients }, 0)
	if err != nil {
		return err
	}
	s.add("start bytes", float64(started.Bytes)/n)
	s.add("start CPU", (cpu(server)-took)/n)
	sleep(ctx, fleetRest)
	s.add("client memory", (resident(server)-memory)/n)
	took = cpu(server)
	sleep(ctx, fleetRest)
	s.add("rest CPU", (cpu(server)-took)/fleetRest.Seconds())
	for range r.changes {
		before, err := r.report(ctx, 0)
		if err != nil {
			return err
		}
		late, after, err := r.change(ctx)
		if err != nil {
			return err
		}
		s.add("change", late)
		s.add("change bytes", float64(after.Bytes-before.Bytes)/n)
	}
	if err := r.rolling(ctx, s); err != nil || r.outage == 0 {
		return err
	}
	return r.withoutServer(ctx, s)
}

// rolling replaces the endpoints of many Services.
func (r *fleetRun) rolling(ctx context.Context, s samples) error {
	many := max(1, r.world.services/fleetRolling)
	before, err := r.report(ctx, 0)
	if err != nil {
		return err
	}
	took, clients, began := cpu(r.cluster.ServerPID()), r.clientCPU(), time.Now()
	r.generation++
	err = each(ctx, many, func(i int) error {
		_, err := r.write(ctx, 1+i)
		return err
	})
	if err != nil {
		return err
	}
	late, after, err := r.change(ctx)
	s.add("rolling time", time.Unix(0, after.Last).Sub(began).Seconds())
	s.add("rolling", late)
	s.add("rolling client CPU", (r.clientCPU()-clients)/float64(r.clients*(many+1)))
	s.add("rolling CPU", (cpu(r.cluster.ServerPID())-took)/float64(many+1))
	s.add("rolling bytes", float64(after.Bytes-before.Bytes)/float64(r.clients*(many+1)))
	return err
}

// clientCPU returns what the clients have used, in seconds.
func (r *fleetRun) clientCPU() (used float64) {
	for _, p := range r.processes {
		used += cpu(p.PID())
	}
	return used
}

// withoutServer ends the API server and starts it again.
func (r *fleetRun) withoutServer(ctx context.Context, s samples) error {
	before, err := r.report(ctx, 0)
	if err != nil {
		return err
	}
	starts, err := r.restart(ctx)
	if err != nil {
		return err
	}
	s.add("restart starts", float64(starts))
	late, after, err := r.change(ctx)
	n, server := float64(r.clients), r.cluster.ServerPID()
	s.add("restart", late)
	s.add("restart lists", float64(after.Lists-before.Lists)/n)
	s.add("restart bytes", float64(after.Bytes-before.Bytes)/n)
	s.add("restart CPU", cpu(server))
	s.add("restart memory", resident(server))
	return err
}

// fleetStarts bounds how often an API server is started that ends before it is ready.
const fleetStarts = 5

// restart kills the API server and starts it until it is ready.
func (r *fleetRun) restart(ctx context.Context) (starts int, err error) {
	r.cluster.KillServer()
	for {
		starts++
		if err = r.cluster.StartServer(ctx); !errors.Is(err, cluster.ErrEnded) || starts == fleetStarts {
			return starts, err
		}
	}
}

// write updates the slice of a Service and returns its version.
func (r *fleetRun) write(ctx context.Context, i int) (version uint64, err error) {
	o, err := r.cluster.Client().DiscoveryV1().EndpointSlices(namespace(i)).Update(ctx, r.world.slice(i, r.world.endpoints, r.generation), metav1.UpdateOptions{})
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(o.ResourceVersion, 10, 64)
}

// change changes the mark, and returns the seconds from its acknowledgement until the
// last client had it.
func (r *fleetRun) change(ctx context.Context) (late float64, after fleetReport, err error) {
	r.generation++
	version, err := r.write(ctx, 0)
	if err != nil {
		return 0, after, err
	}
	at := time.Now()
	after, err = r.until(ctx, func(f fleetReport) bool { return f.Reached == r.clients }, version)
	return max(0, time.Unix(0, after.Last).Sub(at).Seconds()), after, err
}

// start starts the clients.
func (r *fleetRun) start(kind string) error {
	for left := r.clients; left > 0; left -= fleetProcess {
		socket := filepath.Join(r.dir, fmt.Sprintf("%s-%d.sock", kind, left))
		cmd := exec.Command(r.fleet, "-kind", kind, "-n", strconv.Itoa(min(left, fleetProcess)), "-kubeconfig", r.kubeconfig,
			"-listen", socket, "-mark", namespace(0)+"/"+r.world.slice(0, 0, 0).Name, "-at-once", "4")
		cmd.Env = append(os.Environ(), fleetMemory)
		p, err := cluster.Run(r.node, lab.Node, filepath.Join(r.dir, "fleet.log"), cmd)
		if err != nil {
			return err
		}
		r.processes, r.sockets = append(r.processes, p), append(r.sockets, socket)
	}
	return nil
}

func (r *fleetRun) stop() (err error) {
	for _, p := range r.processes {
		err = errors.Join(err, p.Stop(20*time.Second))
	}
	r.processes, r.sockets = nil, nil
	return err
}

// until waits until the fleet is in some state.
func (r *fleetRun) until(ctx context.Context, done func(fleetReport) bool, version uint64) (last fleetReport, err error) {
	err = until(ctx, fleetTime, 50*time.Millisecond, func() (bool, error) {
		for _, p := range r.processes {
			select {
			case <-p.Done():
				return false, fmt.Errorf("the clients ended:\n%s", p.Said(20))
			default:
			}
		}
		if last, err = r.report(ctx, version); err != nil && len(r.processes) > 0 {
			return false, nil // its socket is not there yet
		}
		return done(last), nil
	})
	if err != nil {
		err = fmt.Errorf("%w: %+v of %d", err, last, r.clients)
	}
	return last, err
}

// report asks all processes.
func (r *fleetRun) report(ctx context.Context, version uint64) (sum fleetReport, err error) {
	for _, socket := range r.sockets {
		one, err := askFleet(ctx, socket, version)
		if err != nil {
			return fleetReport{}, err
		}
		sum.Synced, sum.Reached, sum.Last = sum.Synced+one.Synced, sum.Reached+one.Reached, max(sum.Last, one.Last)
		sum.Bytes, sum.Lists, sum.Dials = sum.Bytes+one.Bytes, sum.Lists+one.Lists, sum.Dials+one.Dials
	}
	return sum, nil
}

func askFleet(ctx context.Context, socket string, version uint64) (f fleetReport, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://fleet/?version=%d", version), nil)
	if err != nil {
		return f, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return f, err
	}
	defer answer.Body.Close()
	return f, json.NewDecoder(answer.Body).Decode(&f)
}
