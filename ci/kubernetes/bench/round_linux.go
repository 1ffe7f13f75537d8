package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// startTime is how long a proxy may take for everything.
const startTime = 5 * time.Minute

// run is a benchmark under way.
type run struct {
	options
	cluster    *cluster.Cluster
	generation []int // of the endpoints of each Service, on the API server
	changed    int   // Services so far
}

// round measures one contender on a new node.
func (r *run) round(ctx context.Context, to *result) (err error) {
	s, err := newStage(ctx, r.cluster)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.prepareDrop(); err != nil {
		return err
	}
	bare, err := s.firstPacket(r.world)
	if err != nil {
		return err
	}
	begin := time.Now()
	p, err := r.launch(s, to.contender)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop(20*time.Second)) }()
	u := watchUsage(p.PID())
	defer func() { to.peak = append(to.peak, u.end()) }()
	if err := s.programmed(ctx, r.world, p); err != nil {
		return err
	}
	took := time.Since(begin)
	late, err := s.complete(ctx, r.world)
	if err != nil {
		return err
	}
	if late > 0 {
		took = time.Since(begin)
	}
	to.start = append(to.start, took)
	if to.startCPU, err = more(to.startCPU, p, func() error { sleep(ctx, settle); return nil }, true); err != nil {
		return err
	}
	to.resident = append(to.resident, resident(p.PID()))
	if to.idleCPU, err = more(to.idleCPU, p, func() error { sleep(ctx, idle); return nil }, false); err != nil {
		return err
	}
	before := len(to.changes)
	var spent []time.Duration
	if spent, err = more(spent, p, func() error { return r.changesOf(ctx, s, to) }, false); err != nil {
		return err
	}
	to.changeCPU = append(to.changeCPU, spent[0]/time.Duration(max(1, len(to.changes)-before)))
	to.after = append(to.after, resident(p.PID()))
	packet, err := s.firstPacket(r.world)
	to.packet = append(to.packet, packet-bare)
	return err
}

// more appends the processor time that a process takes while f runs, or if
// whole is set since its start.
func more(all []time.Duration, p *cluster.Process, f func() error, whole bool) ([]time.Duration, error) {
	before, err := cpu(p.PID())
	if err != nil {
		return all, err
	}
	if whole {
		before = 0
	}
	if err := f(); err != nil {
		return all, err
	}
	after, err := cpu(p.PID())
	return append(all, after-before), err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (r *run) launch(s *stage, c contender) (*cluster.Process, error) {
	cmd, err := c.command()
	if err != nil {
		return nil, err
	}
	log := filepath.Join(r.dir, "proxy.log")
	if err := os.RemoveAll(log); err != nil {
		return nil, err
	}
	return cluster.Run(s.net, lab.Node, log, cmd)
}

// changesOf makes changes until there are enough, or the time is up.
func (r *run) changesOf(ctx context.Context, s *stage, to *result) error {
	end := time.Now().Add(r.patience)
	ctx, cancel := context.WithTimeout(ctx, 3*r.patience)
	defer cancel()
	for n := 0; n < r.changes && (n < 3 || time.Now().Before(end)); n++ {
		i := r.changed * 7919 % r.world.services
		r.changed++
		r.generation[i]++
		c, err := s.replace(ctx, r.cluster.Client(), r.world, i, r.generation[i])
		if err != nil {
			return fmt.Errorf("change %d: %w", n+1, err)
		}
		to.changes = append(to.changes, c)
	}
	return nil
}

// programmed waits until some Services all over the world have answered.
func (s *stage) programmed(ctx context.Context, w world, p *cluster.Process) error {
	const sentinels = 20
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	errs := make(chan error, sentinels)
	for n := range sentinels {
		go func() { errs <- s.inClient(func() error { return wait(ctx, w, (w.services-1)*n/(sentinels-1)) }) }()
	}
	var failed error
	for range sentinels {
		select {
		case err := <-errs:
			failed = errors.Join(failed, err)
		case <-p.Done():
			return fmt.Errorf("the proxy ended:\n%s", p.Said(20))
		}
	}
	if failed != nil {
		return fmt.Errorf("not everything was programmed: %w:\n%s", failed, p.Said(20))
	}
	return nil
}

// wait waits until a Service answers.
func wait(ctx context.Context, w world, i int) error {
	for {
		_, err := dial(w.vip(i), 50*time.Millisecond)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", name(i), err)
		}
		time.Sleep(5 * time.Millisecond) // where it is refused at once
	}
}

// complete waits until really every Service answers: the sentinels were not the
// only ones. It tells how many did not when the sentinels did.
func (s *stage) complete(ctx context.Context, w world) (late int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var missing atomic.Int64
	err = each(ctx, w.services, func(i int) error {
		return s.inClient(func() error {
			if _, err := dial(w.vip(i), time.Second); err == nil {
				return nil
			}
			missing.Add(1)
			return wait(ctx, w, i)
		})
	})
	return missing.Load(), err
}
