// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// offload is a backend with a flowtable, which forwards the packets of established
// connections to Services on all devices but loopback and dummies.
type offload struct {
	dataplane.Backend
	flowtable *nft.Offload
	ns        *host.Namespace
	links     *netlink.Handle
	events    chan netlink.LinkUpdate
	unwatch   chan struct{}
	log       *slog.Logger
	trouble   atomic.Pointer[string] // why offload is not in effect; nil if it is

	begin sync.Once
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// withOffload returns b with offload, in the network namespace of the calling thread. It owns b,
// also after an error. Nothing is written before the first Sync.
func withOffload(b dataplane.Backend, log *slog.Logger) (_ dataplane.Backend, err error) {
	o := &offload{Backend: b, log: log}
	if o.ns, err = host.OpenNamespace(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if o.flowtable, err = nft.OpenOffload(); err != nil {
		return nil, errors.Join(err, o.ns.Close(), b.Close())
	}
	if o.links, err = netlink.NewHandle(); err == nil {
		if err = o.watch(); err != nil {
			o.links.Close()
		}
	}
	if err != nil {
		return nil, errors.Join(err, o.flowtable.Close(), o.ns.Close(), b.Close())
	}
	return o, nil
}

// watch subscribes to changes of devices. The subscription ends, and closes events, when
// notices are lost.
func (o *offload) watch() error {
	events, unwatch := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	err := o.ns.Do(func() error { return netlink.LinkSubscribe(events, unwatch) })
	if err == nil {
		o.events, o.unwatch = events, unwatch
	}
	return err
}

// stopWatching ends the subscription, and drains its channel, to which its goroutine may be
// sending.
func (o *offload) stopWatching() {
	if o.events == nil {
		return
	}
	close(o.unwatch)
	for range o.events {
	}
	o.events, o.unwatch = nil, nil
}

// Sync starts the offload, the first time.
func (o *offload) Sync(ctx context.Context) (dataplane.Work, error) {
	o.begin.Do(func() {
		running, stop := context.WithCancel(context.Background())
		o.stop = stop
		o.done.Go(func() { o.follow(running) })
	})
	return o.Backend.Sync(ctx)
}

// offloadRetry is the pause before programming or removing the flowtable is retried.
const offloadRetry = 30 * time.Second

// follow updates the devices of the flowtable until ctx ends.
func (o *offload) follow(ctx context.Context) {
	for {
		var watching error
		if o.events == nil {
			watching = o.watch()
		}
		err := errors.Join(watching, o.set(ctx))
		retry := (<-chan time.Time)(nil)
		if ctx.Err() == nil {
			o.logState(err)
			if err != nil {
				retry = time.After(offloadRetry)
			}
		}
		if !o.wait(ctx, retry) {
			return
		}
	}
}

// logState logs once why the offload is not in effect, and when it is again.
func (o *offload) logState(err error) {
	before := o.trouble.Load()
	switch {
	case err == nil && before != nil:
		o.trouble.Store(nil)
		o.log.Info("flow offload enabled")
	case err != nil && (before == nil || *before != err.Error()):
		text := err.Error()
		o.trouble.Store(&text)
		o.log.Warn("flow offload is not in effect", "err", err, "retry", offloadRetry)
	}
}

var _ dataplane.Backend = (*offload)(nil)

func (o *offload) Health() dataplane.Health {
	h := o.Backend.Health()
	if text := o.trouble.Load(); text != nil {
		h.Problems = append(slices.Clip(h.Problems), model.Problem{Object: "flow offload", Why: model.WhyDegraded, Detail: *text})
	}
	return h
}

// wait waits for a change of devices or the time of a retry, and returns false when ctx
// ends. If the subscription has ended, it sets events to nil and waits a second.
func (o *offload) wait(ctx context.Context, retry <-chan time.Time) bool {
	open := true
	select {
	case <-ctx.Done():
		return false
	case _, open = <-o.events:
	case <-retry:
	}
	for open && len(o.events) > 0 { // notices come in bursts; one listing covers them
		_, open = <-o.events
	}
	if open {
		return true
	}
	o.stopWatching()
	return sleep.For(ctx, time.Second)
}

func (o *offload) set(ctx context.Context) error {
	devices, err := o.devices()
	if err != nil {
		return err
	}
	return o.flowtable.Set(ctx, devices)
}

// devices returns the names of the devices whose packets are offloaded.
func (o *offload) devices() (names []string, err error) {
	var all []netlink.Link
	err = host.RetryInterrupted(func() error {
		all, err = o.links.LinkList()
		return err
	})
	for _, l := range all {
		if name := l.Attrs().Name; name != "lo" && !host.Dummies(l) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

func (o *offload) Remove(ctx context.Context) error {
	o.end()
	return errors.Join(o.flowtable.Remove(ctx), o.Backend.Remove(ctx))
}

// Close: the flowtable stays, as everything programmed does.
func (o *offload) Close() error {
	o.end()
	o.stopWatching()
	o.links.Close()
	return errors.Join(o.flowtable.Close(), o.ns.Close(), o.Backend.Close())
}

func (o *offload) end() {
	o.begin.Do(func() {})
	if o.stop != nil {
		o.stop()
	}
	o.done.Wait()
}

// unoffloaded is a backend whose Sync removes the flowtable that an earlier run with offload
// has left.
type unoffloaded struct {
	dataplane.Backend
	flowtable *nft.Offload // nil once it is removed
	log       *slog.Logger
	retryAt   time.Time // after a failure to remove it
}

// withoutOffload returns b without offload, in the network namespace of the calling thread. It owns b,
// also after an error. Nothing is written before the first Sync.
func withoutOffload(b dataplane.Backend, log *slog.Logger) (dataplane.Backend, error) {
	f, err := nft.OpenOffload()
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &unoffloaded{Backend: b, flowtable: f, log: log}, nil
}

// Sync removes the flowtable first. A failure to do so is retried, and does not delay other
// changes.
func (u *unoffloaded) Sync(ctx context.Context) (dataplane.Work, error) {
	if u.flowtable != nil && !time.Now().Before(u.retryAt) {
		if err := u.removeFlowtable(ctx); err != nil {
			if u.retryAt.IsZero() { // once
				u.log.Warn("removing the flowtable of an earlier run failed", "err", err, "retry", offloadRetry)
			}
			u.retryAt = time.Now().Add(offloadRetry)
		}
	}
	return u.Backend.Sync(ctx)
}

var _ dataplane.Backend = (*unoffloaded)(nil)

func (u *unoffloaded) Next() time.Time {
	if u.flowtable == nil {
		return u.Backend.Next()
	}
	return sleep.Earlier(u.Backend.Next(), u.retryAt)
}

func (u *unoffloaded) removeFlowtable(ctx context.Context) error {
	err := u.flowtable.Remove(ctx)
	if err == nil {
		err, u.flowtable = u.flowtable.Close(), nil
	}
	return err
}

func (u *unoffloaded) Remove(ctx context.Context) (err error) {
	if u.flowtable != nil {
		err = u.removeFlowtable(ctx)
	}
	return errors.Join(err, u.Backend.Remove(ctx))
}

func (u *unoffloaded) Close() (err error) {
	if u.flowtable != nil {
		err = u.flowtable.Close()
	}
	return errors.Join(err, u.Backend.Close())
}
