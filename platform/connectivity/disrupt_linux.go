// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

const (
	// answerTime is the limit of a connection with its answer.
	answerTime = 5 * time.Second
	// askEvery is how often a held connection is asked.
	askEvery = 250 * time.Millisecond
	// calm is how long connections are made before and after a disturbance.
	calm = 500 * time.Millisecond
	// mostWaiting bounds the new connections that are under way.
	mostWaiting = 256
)

// Disrupt makes and holds connections to a Service with endpoints here and elsewhere,
// over TCP and UDP, while something is done to the proxy.
func (r *Rig) Disrupt(ctx context.Context, l Load) (Disruption, error) {
	doc, err := platform.Ask(r.inside(ctx), question.ListServices(), question.ServicesRequest{})
	if err != nil {
		return Disruption{}, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d := &disrupter{rig: r, load: l, begin: time.Now(), result: Disruption{Node: doc.Node, Mode: doc.Mode}}
	if err := d.hold(); err != nil {
		return d.result, errors.Join(err, d.hangUp())
	}
	var traffic sync.WaitGroup
	traffic.Go(func() { d.makeNew(ctx) })
	traffic.Go(func() { d.askHeld(ctx) })
	err = d.disturb(ctx)
	stop()
	traffic.Wait()
	d.summarize()
	return d.result, errors.Join(err, d.hangUp())
}

// way is one of the ways to the Service.
type way struct {
	call netns.Call
	from string
}

// ways are those of a protocol: to the cluster IP from a pod and from the node, to the
// node port and the load balancer IP from outside.
func (r *Rig) ways(proto model.Proto) (all []way) {
	v := services()[0]
	for _, f := range r.site.Families {
		for _, c := range r.site.clients(v, f) {
			for _, x := range r.site.frontends(v, f) {
				outside := c.from == "outside" && (x.kind == model.KindNodePort || x.kind == model.KindLoadBalancer)
				if !outside && (x.kind != model.KindClusterIP || c.from != "pod" && c.from != "node") {
					continue
				}
				all = append(all, way{r.call(c, proto, x.at, answerTime), c.from})
			}
		}
	}
	return all
}

// protocols are those of connections.
func protocols() []model.Proto { return []model.Proto{model.TCP, model.UDP} }

// disrupter makes connections and counts their outcomes.
type disrupter struct {
	rig   *Rig
	load  Load
	begin time.Time
	held  []*heldConn

	mu     sync.Mutex
	result Disruption
	counts [2]New // by protocol
	times  [2]times
	asked  [2]int
}

// heldConn is a held connection.
type heldConn struct {
	conn   net.Conn
	way    way
	server netip.AddrPort
	broken bool
	moved  bool
}

// hold makes the connections that are held.
func (d *disrupter) hold() error {
	for i := range d.load.Held {
		proto := protocols()[i%2]
		ways := d.rig.ways(proto)
		w := ways[i/2%len(ways)]
		conn, err := d.rig.net.Connect(w.call)
		if err != nil {
			return fmt.Errorf("connection %d to be held: from %s to %s/%s: %w", i+1, w.from, w.call.To, proto, err)
		}
		h := &heldConn{conn: conn, way: w}
		d.held = append(d.held, h)
		a, err := netns.Ask(conn, answerTime)
		if err == nil && a.Outcome != netns.Answered {
			err = errors.New(a.Outcome.String())
		}
		if err != nil {
			return fmt.Errorf("connection %d to be held: from %s to %s/%s: %w", i+1, w.from, w.call.To, proto, err)
		}
		h.server = a.Server
	}
	return nil
}

func (d *disrupter) hangUp() error {
	var errs []error
	for _, h := range d.held {
		if err := h.conn.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// askHeld sends a request on all held connections in turn until ctx ends, and once more.
func (d *disrupter) askHeld(ctx context.Context) {
	for last := false; ; {
		var asking sync.WaitGroup
		slots := make(chan struct{}, mostWaiting)
		for _, h := range d.held {
			if h.broken {
				continue
			}
			slots <- struct{}{}
			asking.Go(func() {
				defer func() { <-slots }()
				d.ask(h)
			})
		}
		asking.Wait()
		if last {
			return
		}
		last = !sleep.For(ctx, askEvery)
	}
}

// ask asks one held connection. A datagram may be lost on its way: UDP asks twice.
func (d *disrupter) ask(h *heldConn) {
	began := time.Now()
	a, err := netns.Ask(h.conn, answerTime)
	if h.way.call.Proto == model.UDP && err == nil && a.Outcome == netns.TimedOut {
		a, err = netns.Ask(h.conn, answerTime)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked[protocolIndex(h.way)]++
	switch {
	case err != nil:
		h.broken = true
		d.failed(began, "held", h.way, err.Error())
	case a.Outcome != netns.Answered:
		h.broken = true
		d.failed(began, "held", h.way, "no answer: "+a.Outcome.String())
	case a.Server != h.server && h.way.call.Proto == model.UDP:
		h.moved = true
	case a.Server != h.server:
		h.broken = true
		d.failed(began, "held", h.way, fmt.Sprintf("answered by %s, before by %s", a.Server, h.server))
	}
}

func protocolIndex(w way) int { return slices.Index(protocols(), w.call.Proto) }

// failed notes a failure; mu is held.
func (d *disrupter) failed(at time.Time, kind string, w way, what string) {
	if len(d.result.Failures) < mostFailures {
		d.result.Failures = append(d.result.Failures, Failure{
			Second: at.Sub(d.begin).Seconds(), Kind: kind, Protocol: w.call.Proto.String(), From: w.from, To: w.call.To.String(), What: what,
		})
	}
}

// makeNew makes new connections until ctx ends, and waits for them.
func (d *disrupter) makeNew(ctx context.Context) {
	var ways []way
	for _, proto := range protocols() {
		ways = append(ways, d.rig.ways(proto)...)
	}
	tick := time.NewTicker(time.Second / time.Duration(d.load.Rate))
	defer tick.Stop()
	var making sync.WaitGroup
	defer making.Wait()
	slots := make(chan struct{}, mostWaiting)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		slots <- struct{}{}
		making.Go(func() {
			defer func() { <-slots }()
			d.connect(ways[i%len(ways)])
		})
	}
}

// connect makes one new connection.
func (d *disrupter) connect(w way) {
	began := time.Now()
	conn, err := d.rig.net.Connect(w.call)
	made := err == nil
	var a netns.Answer
	if made {
		a, err = netns.Ask(conn, answerTime)
		conn.Close()
	}
	took := time.Since(began)
	d.mu.Lock()
	defer d.mu.Unlock()
	i := protocolIndex(w)
	n := &d.counts[i]
	n.Made++
	d.times[i].add(took)
	if took >= d.load.Slow {
		n.Slow++
	}
	switch {
	case err == nil && a.Outcome == netns.Answered:
		return
	case made && w.call.Proto == model.TCP && (err != nil || a.Outcome == netns.Refused):
		n.Reset++
	default:
		n.Failed++
	}
	what := a.Outcome.String()
	if err != nil {
		what = err.Error()
	} else if made {
		what = "no answer: " + what
	}
	d.failed(began, "new", w, what)
}

// summarize completes the result.
func (d *disrupter) summarize() {
	d.result.Seconds = time.Since(d.begin).Seconds()
	for i, proto := range protocols() {
		n := d.counts[i]
		n.Protocol = proto.String()
		n.P50, n.P99, n.Max = d.times[i].quantile(0.5), d.times[i].quantile(0.99), milliseconds(d.times[i].worst)
		d.result.New = append(d.result.New, n)
		h := Held{Protocol: proto.String(), Asked: d.asked[i]}
		for _, c := range d.held {
			if c.way.call.Proto == proto {
				h.Held++
				if c.broken {
					h.Broken++
				}
				if c.moved {
					h.Moved++
				}
			}
		}
		d.result.Held = append(d.result.Held, h)
	}
}

// disturb applies the disturbance of the load to the proxy, with calm before and after.
func (d *disrupter) disturb(ctx context.Context) error {
	sleep.For(ctx, calm)
	var err error
	switch l := d.load; {
	case l.Restart:
		err = d.noted("restart", func() error { return d.rig.restart(ctx, "") })
	case l.Upgrade != "":
		err = d.noted("upgrade to "+l.Upgrade, func() error { return d.rig.restart(ctx, l.Upgrade) })
	case l.Switch != "":
		err = d.noted("switch to mode "+string(l.Switch), func() error {
			_, err := platform.SwitchTo(d.rig.inside(ctx), l.Switch, func(string) {})
			return err
		})
	case len(l.Command) > 0:
		err = d.noted(strings.Join(l.Command, " "), func() error { return d.rig.run(ctx, l.Command) })
	}
	sleep.For(ctx, max(calm, d.load.For-time.Since(d.begin)))
	return err
}

// noted does something and notes it.
func (d *disrupter) noted(what string, do func() error) error {
	begin := time.Now()
	x := Disturbance{What: what, Second: begin.Sub(d.begin).Seconds()}
	err := do()
	x.Seconds = time.Since(begin).Seconds()
	if err != nil {
		x.Error = err.Error()
		err = fmt.Errorf("%s: %w", what, err)
	}
	d.result.Disturbances = append(d.result.Disturbances, x)
	return err
}

// restart stops the proxy of a rig as a service manager does, and starts it again, or
// another program.
func (r *Rig) restart(ctx context.Context, program string) error {
	if r.proxy == nil {
		return errors.New("only a proxy that the test has started can be restarted by it: restart the running one by a command")
	}
	if err := r.proxy.stop(); err != nil {
		return err
	}
	r.proxy.bin = cmp.Or(program, r.proxy.bin)
	if err := r.proxy.start(); err != nil {
		return err
	}
	return r.served(ctx)
}

// run runs a command on the node.
func (r *Rig) run(ctx context.Context, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // the result is on the standard output
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTime
	start := cmd.Start
	if r.enter != nil {
		start = func() error { return r.enter(cmd.Start) }
	}
	if err := start(); err != nil {
		return err
	}
	return cmd.Wait()
}
