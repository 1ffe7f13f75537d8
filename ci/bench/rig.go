package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/platform"
)

// rig is the path from the tracker to the kernel, without a source before it
// and on one goroutine, so that what is measured is exactly that.
type rig struct {
	world
	ctx     context.Context
	tracker *track.Tracker
	backend dataplane.Backend
}

func newRig(ctx context.Context, w world) (*rig, error) { return newRigIn(ctx, config.NFTables, w) }

// newRigIn is a rig in a mode.
func newRigIn(ctx context.Context, name config.Mode, w world) (*rig, error) {
	c := config.Default()
	c.NodeName = nodeName
	c.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/9")}
	mode, err := platform.Find(name)
	if err != nil {
		return nil, err
	}
	r := &rig{world: w, ctx: ctx, tracker: track.New()}
	if r.backend, err = mode.Open(&c); err != nil {
		return nil, err
	}
	host := resolve.Host(&c, nil, nil, model.Machine{})
	if err := r.backend.Adopt(ctx); err != nil {
		return nil, errors.Join(err, r.backend.Close())
	}
	r.tracker.KeepSlots(r.backend.Slots)
	r.tracker.SetHost(host)
	r.backend.SetHost(host)
	return r, nil
}

// load hands all inputs to the tracker.
func (r *rig) load() {
	for i := range r.services {
		r.tracker.SetService(r.service(i))
		r.tracker.SetSlice(r.slice(i, 0, 0))
	}
}

// apply brings the kernel up to date and returns how long it took and what it
// wrote.
func (r *rig) apply() (time.Duration, dataplane.Work, error) {
	start := time.Now()
	r.backend.Update(r.tracker.Flush())
	work, err := r.backend.Sync(r.ctx)
	return time.Since(start), work, err
}

// audit reads the kernel back and compares, beside which changes go on, and
// returns how long that took.
func (r *rig) audit() (took time.Duration, err error) {
	start := time.Now()
	drift, err := r.backend.Audit(r.ctx)
	if err == nil && drift != 0 {
		err = fmt.Errorf("an audit found %d objects not as they were left", drift)
	}
	return time.Since(start), err
}

// close removes what was programmed.
func (r *rig) close() error {
	return errors.Join(r.backend.Remove(r.ctx), r.backend.Close())
}

// times are measurements of one kind.
type times []time.Duration

func (t times) quantile(q float64) time.Duration {
	s := slices.Sorted(slices.Values(t))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func (t times) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, max %s of %d", show(t.quantile(.5)), show(t.quantile(.99)), show(t.quantile(1)), len(t))
}

// show prints a duration with three digits that mean something.
func show(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// changes applies n changes one by one and returns how long each took, from the
// tracker's event to the kernel's acknowledgement, and the most it wrote.
func (r *rig) changes(n int, slice func(n int) *model.Slice) (took times, mostOps int, err error) {
	for i := range n {
		s := slice(i)
		start := time.Now()
		r.tracker.SetSlice(s)
		_, work, err := r.apply()
		if err != nil {
			return nil, 0, err
		}
		took = append(took, time.Since(start))
		mostOps = max(mostOps, work.Ops)
	}
	return took, mostOps, nil
}
