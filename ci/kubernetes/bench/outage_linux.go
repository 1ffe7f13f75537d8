package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gone kills the API server for a while, under load, and changes an endpoint
// through another server meanwhile.
func (r *run) gone(ctx context.Context, c contender) (err error) {
	s, err := newStage(ctx, r.cluster)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	p, err := r.launch(s, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop(20*time.Second)) }()
	if err := s.programmed(ctx, r.world, p); err != nil {
		return err
	}
	spare, err := r.cluster.Spare(ctx)
	if err != nil {
		return err
	}
	stop := s.load(ctx, r.world)
	r.cluster.KillServer()
	sleep(ctx, r.outage/2)
	const i = 1
	r.generation[i]++
	if _, err := spare.DiscoveryV1().EndpointSlices(namespace(i)).Update(ctx, r.world.slice(i, r.generation[i]), metav1.UpdateOptions{}); err != nil {
		return err
	}
	sleep(ctx, r.outage/2)
	if err := r.cluster.StartServer(ctx); err != nil {
		return err
	}
	back := time.Now()
	err = s.inClient(func() error {
		for {
			if pod, err := dial(r.world.vip(i), time.Second); err == nil && generation(pod) == r.generation[i]%generations {
				return nil
			}
			if time.Since(back) > time.Minute {
				return errors.New("the change of the outage does not arrive")
			}
		}
	})
	took := time.Since(back)
	made, failed := stop()
	fmt.Printf("\nAPI server killed for %s under load (%s): %d of %d new connections failed [goal 0: %s]; a change made meanwhile works %s after the server is ready [goal ≤ 1 s: %s]\n",
		r.outage, c.name, failed, made, verdict(failed == 0), show(took), verdict(took <= time.Second))
	return err
}

// load makes connections to all Services in turn until the function that it
// returns is called, which tells how many there were and how many failed.
func (s *stage) load(ctx context.Context, w world) (stop func() (made, failed int64)) {
	ctx, cancel := context.WithCancel(ctx)
	var made, failed atomic.Int64
	var group sync.WaitGroup
	group.Go(func() {
		_ = s.inClient(func() error {
			for i := 0; ctx.Err() == nil; i = (i + 1) % w.services {
				if _, err := dial(w.vip(i), 2*time.Second); err != nil {
					failed.Add(1)
				}
				made.Add(1)
				time.Sleep(time.Millisecond)
			}
			return nil
		})
	})
	return func() (int64, int64) {
		cancel()
		group.Wait()
		return made.Load(), failed.Load()
	}
}
