// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// How long a call may take until it is reported, and until it is abandoned.
const (
	slow    = 10 * time.Second
	tooSlow = 2 * time.Minute
)

// finishing is how long writes that have begun may go on after the end of their context: what
// HNS makes meanwhile is entered into the journal, and a frontend whose load balancer was
// deleted gets the new one. It is shorter than what Windows leaves to a program that is told to
// end: 5 s after CTRL_CLOSE_EVENT (HandlerRoutine), 10 s before a shutdown
// (SERVICE_PRESHUTDOWN_INFO).
const finishing = 4 * time.Second

// outlasting returns a context that ends some time after another one, or when it is released.
func outlasting(ctx context.Context, d time.Duration) (longer context.Context, release func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep.For(longer, d)
		cancel()
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// calls makes calls to HNS that end. A call cannot be cancelled, and HNS is known
// to hang (aks-engine#4315): each runs on a goroutine of its own, and one that is
// abandoned remains until HNS returns. While a write or a call that timed out does, no other is
// made: there is never a second writer. A read that its caller has left holds up reads alone.
//
// Ids come in any case; here they are all made lower.
type calls struct {
	hns     HNS
	log     *slog.Logger
	slow    time.Duration
	tooSlow time.Duration
	hung    atomic.Int32 // calls that were abandoned and have not returned, but for those in left
	left    atomic.Int32 // reads whose context has ended, and that have not returned
}

// newCalls returns the calls of an HNS. Without a logger nothing is logged.
func newCalls(h HNS, log *slog.Logger) *calls {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &calls{hns: h, log: log, slow: slow, tooSlow: tooSlow}
}

// The states of a call.
const (
	running int32 = iota
	returned
	abandoned
)

// do makes one call that changes nothing.
func do[T any](ctx context.Context, c *calls, what string, f func(HNS) (T, error)) (result T, err error) {
	return bounded(ctx, c, &c.left, what, f)
}

// write makes one call that changes HNS.
func write[T any](ctx context.Context, c *calls, what string, f func(HNS) (T, error)) (result T, err error) {
	return bounded(ctx, c, &c.hung, what, f)
}

// bounded makes one call. When ctx ends it is abandoned, and counted in ended until it returns.
func bounded[T any](ctx context.Context, c *calls, ended *atomic.Int32, what string, f func(HNS) (T, error)) (
	result T, err error,
) {
	if err := ctx.Err(); err != nil {
		return result, err
	}
	if c.hung.Load() > 0 || ended.Load() > 0 {
		return result, fmt.Errorf("%s: an earlier HNS call has not returned: %w", what, ledger.ErrUnknown)
	}
	type answer struct {
		value T
		err   error
	}
	var state atomic.Int32
	var counted *atomic.Int32 // where, once it is abandoned
	done := make(chan answer, 1)
	begun := time.Now()
	go func() {
		v, err := f(c.hns)
		done <- answer{v, err}
		if !state.CompareAndSwap(running, returned) {
			counted.Add(-1)
			c.log.Info("late HNS call returned", "call", what)
		}
	}()
	report, end := time.NewTimer(c.slow), time.NewTimer(c.tooSlow)
	defer report.Stop()
	defer end.Stop()
	for {
		counted = &c.hung
		select {
		case a := <-done:
			c.log.Debug("HNS call", "call", what, "ms", time.Since(begun).Milliseconds(), "err", a.err)
			return a.value, unknown(a.err)
		case <-report.C:
			c.log.Warn("HNS call is slow", "call", what, "after", c.slow)
			continue
		case <-ctx.Done():
			counted = ended
			err = fmt.Errorf("%s: %w", what, ctx.Err())
		case <-end.C:
			err = fmt.Errorf("%s: no answer within %s", what, c.tooSlow)
			c.log.Error("HNS call timed out", "call", what, "after", c.tooSlow)
		}
		counted.Add(1)
		if state.CompareAndSwap(running, abandoned) {
			return result, fmt.Errorf("%w: %w", err, ledger.ErrUnknown)
		}
		counted.Add(-1)
	}
}

// busy reports whether HNS is still at a call that nobody waits for any more.
func (c *calls) busy() bool { return c.hung.Load() > 0 || c.left.Load() > 0 }

// run makes a call that changes HNS and has no result.
func run(ctx context.Context, c *calls, what string, f func(HNS) error) error {
	_, err := write(ctx, c, what, func(h HNS) (struct{}, error) { return struct{}{}, f(h) })
	return err
}

func (c *calls) networks(ctx context.Context) ([]Network, error) {
	return do(ctx, c, "list networks", HNS.Networks)
}

func (c *calls) endpointIDs(ctx context.Context, network string) ([]string, error) {
	ids, err := do(ctx, c, "list endpoints", func(h HNS) ([]string, error) { return h.EndpointIDs(network) })
	for i := range ids {
		ids[i] = strings.ToLower(ids[i])
	}
	return ids, err
}

func (c *calls) endpoint(ctx context.Context, id string) (Endpoint, error) {
	e, err := do(ctx, c, "read endpoint "+id, func(h HNS) (Endpoint, error) { return h.Endpoint(id) })
	e.ID = strings.ToLower(e.ID)
	return e, err
}

func (c *calls) createEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	e, err := write(ctx, c, "create endpoint "+e.Name, func(h HNS) (Endpoint, error) { return h.CreateEndpoint(e) })
	e.ID = strings.ToLower(e.ID)
	return e, err
}

func (c *calls) deleteEndpoint(ctx context.Context, id string) error {
	return run(ctx, c, "delete endpoint "+id, func(h HNS) error { return h.DeleteEndpoint(id) })
}

func (c *calls) balancerIDs(ctx context.Context) ([]string, error) {
	ids, err := do(ctx, c, "list load balancers", HNS.BalancerIDs)
	for i := range ids {
		ids[i] = strings.ToLower(ids[i])
	}
	return ids, err
}

func (c *calls) balancer(ctx context.Context, id string) (LoadBalancer, error) {
	lb, err := do(ctx, c, "read load balancer "+id, func(h HNS) (LoadBalancer, error) { return h.Balancer(id) })
	return lower(lb), err
}

func (c *calls) createBalancer(ctx context.Context, k Key, lb LoadBalancer) (LoadBalancer, error) {
	lb, err := write(ctx, c, "create "+k.String(), func(h HNS) (LoadBalancer, error) { return h.CreateBalancer(lb) })
	return lower(lb), err
}

func (c *calls) modifyBalancer(ctx context.Context, k Key, id string, to LoadBalancer) (LoadBalancer, error) {
	lb, err := write(ctx, c, "modify "+k.String(), func(h HNS) (LoadBalancer, error) { return h.ModifyBalancer(id, to) })
	return lower(lb), err
}

func (c *calls) deleteBalancer(ctx context.Context, k Key, id string) error {
	return run(ctx, c, "delete "+k.String(), func(h HNS) error { return h.DeleteBalancer(id) })
}

func lower(lb LoadBalancer) LoadBalancer {
	lb.ID = strings.ToLower(lb.ID)
	for i, id := range lb.HostComputeEndpoints {
		lb.HostComputeEndpoints[i] = strings.ToLower(id)
	}
	return lb
}
