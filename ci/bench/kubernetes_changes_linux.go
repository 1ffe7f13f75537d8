// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// pause is the time between connections, and with it the error of a measured change.
const pause = 200 * time.Microsecond

// steady is how many connections in a row must reach the new endpoints before
// the old ones count as gone.
const steady = 50

// changesOf makes changes until there are enough, or the time is up, and returns
// how many.
func (r *kubernetesRun) changesOf(ctx context.Context, n *testNode, s samples) (made int, err error) {
	end := time.Now().Add(r.patience)
	ctx, cancel := context.WithTimeout(ctx, 3*r.patience)
	defer cancel()
	for ; made < r.changes && (made < 3 || time.Now().Before(end)); made++ {
		i := r.changed * 7919 % r.world.services
		r.changed++
		r.generation[i]++
		if err := n.replace(ctx, r.cluster.Client(), r.world, i, r.generation[i], s); err != nil {
			return made, fmt.Errorf("change %d: %w", made+1, err)
		}
	}
	return made, nil
}

// replace replaces all endpoints of a Service and follows the change. Time
// begins when the API server has acknowledged the write.
func (n *testNode) replace(ctx context.Context, client kubernetes.Interface, w world, i, gen int, s samples) error {
	watching := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := make(chan error, 1)
	var first, last time.Time
	var failed int
	go func() {
		seen <- n.inClient(func() (err error) {
			first, last, failed, err = follow(ctx, w.vip(i), gen%generations, watching)
			return err
		})
	}()
	if err := <-watching; err != nil {
		return err
	}
	_, err := client.DiscoveryV1().EndpointSlices(namespace(i)).Update(ctx, w.slice(i, w.endpoints, gen), metav1.UpdateOptions{})
	at := time.Now()
	if err != nil {
		cancel()
		<-seen
		return err
	}
	if err := <-seen; err != nil {
		return err
	}
	s.add("first", max(0, first.Sub(at).Seconds()))
	s.add("last", max(0, last.Sub(at).Seconds()))
	s.add("failed", float64(failed))
	return nil
}

// follow connects to a Service again and again until only endpoints of a new
// generation answer. It reports whether it has seen the old one.
func follow(ctx context.Context, vip netip.AddrPort, gen int, watching chan<- error) (first, last time.Time, failed int, err error) {
	for n := 0; n < steady; {
		if ctx.Err() != nil {
			return first, last, failed, ctx.Err()
		}
		pod, err := dial(vip, time.Second)
		now := time.Now()
		switch {
		case last.IsZero() && (err != nil || generation(pod) == gen):
			err = fmt.Errorf("before the change %s answers: %s, %v", vip, pod, err)
			watching <- err
			return first, last, failed, err
		case err != nil:
			failed++
		case generation(pod) == gen:
			n++
			if first.IsZero() {
				first = now
			}
		default:
			n = 0
			if last.IsZero() {
				watching <- nil
			}
			last = now
		}
		time.Sleep(pause)
	}
	return first, last, failed, nil
}
