// SPDX-License-Identifier: Apache-2.0

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

// withoutServer kills the API server for a while, under load, and changes an endpoint
// through another server meanwhile.
func (r *kubernetesRun) withoutServer(ctx context.Context, to kubernetesProxy) (note string, err error) {
	n, err := newTestNode(ctx, r.cluster)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	p, err := r.launch(n, to)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.Stop(20*time.Second)) }()
	if err := n.programmed(ctx, r.world, p); err != nil {
		return "", err
	}
	spare, err := r.cluster.Spare(ctx)
	if err != nil {
		return "", err
	}
	stop := n.load(ctx, r.world)
	r.cluster.KillServer()
	sleep(ctx, r.outage/2)
	const i = 1
	r.generation[i]++
	if _, err := spare.DiscoveryV1().EndpointSlices(namespace(i)).Update(ctx, r.world.slice(i, r.world.endpoints, r.generation[i]), metav1.UpdateOptions{}); err != nil {
		return "", err
	}
	sleep(ctx, r.outage/2)
	if err := r.cluster.StartServer(ctx); err != nil {
		return "", err
	}
	back := time.Now()
	err = n.inClient(func() error {
		return until(ctx, time.Minute, 0, func() (bool, error) {
			pod, err := dial(r.world.vip(i), time.Second)
			return err == nil && generation(pod) == r.generation[i]%generations, nil
		})
	})
	took := time.Since(back)
	made, failed := stop()
	return fmt.Sprintf("API server killed for %s under load (%s): %d of %d new connections failed; a change made during the outage works %s after the server is ready (goals: 0, 1 s).",
		r.outage, to.name, failed, made, showSeconds(took.Seconds())), err
}

// load makes connections to all Services in turn until the function that it
// returns is called, which returns how many there were and how many failed.
func (n *testNode) load(ctx context.Context, w world) (stop func() (made, failed int64)) {
	ctx, cancel := context.WithCancel(ctx)
	var made, failed atomic.Int64
	var group sync.WaitGroup
	group.Go(func() {
		_ = n.inClient(func() error {
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
