// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

const (
	switchTries = 20 // how often what the next data plane rejects is retried
	switchPause = 20 * time.Millisecond
)

// Switch moves everything to another data plane while both work. Next is brought
// to the desired state in parallel to the present one, at its own pace and without a
// change having to wait; then, between two syncs, it is given what has changed
// meanwhile and becomes the one in use. At no moment is neither of them complete.
//
// It returns the data plane that was replaced, which still has everything: the
// caller removes that and closes it. After an error nothing has changed, and
// next is the caller's to remove.
func (e *Engine) Switch(ctx context.Context, next DataPlane) (old DataPlane, err error) {
	seen, err := ask(ctx, e.inbox, e.desired)
	if err != nil {
		return DataPlane{}, err
	}
	if seen.unready != nil {
		return DataPlane{}, seen.unready
	}
	if err := next.Adopt(ctx); err != nil {
		return DataPlane{}, fmt.Errorf("read back installed objects: %w", err)
	}
	seen.update(next, desired{})
	c := &candidate{DataPlane: next}
	for failed := 0; ; {
		if err := c.programAll(ctx); err != nil {
			return DataPlane{}, err
		}
		// This does not end with ctx: the caller must know whether it took place.
		done, err := ask(context.WithoutCancel(ctx), e.inbox, func() cutover { return e.cutOver(ctx, c, seen) })
		if err != nil || done.done {
			return done.old, err
		}
		if done.err != nil {
			failed++
		}
		if failed > switchTries {
			return DataPlane{}, done.err
		}
		seen = done.seen
		if !sleep.For(ctx, switchPause) {
			return DataPlane{}, ctx.Err()
		}
	}
}

// desired is the desired state at one moment.
type desired struct {
	host       *model.Host
	ports      map[model.PortID]*model.Port
	incomplete bool
	unready    error // why no other data plane may take over now
}

func (e *Engine) desired() desired {
	d := desired{host: e.tracker.Host(), ports: map[model.PortID]*model.Port{}, incomplete: e.incomplete}
	switch {
	case !e.adopted, !e.sourceSynced, !e.Status().Synced:
		d.unready = ErrNotReady
	case len(e.withheld) > 0:
		first := slices.MinFunc(slices.Collect(maps.Keys(e.withheld)), model.PortID.Compare)
		d.unready = fmt.Errorf("%w (%d ports, such as %s)", ErrWithheld, len(e.withheld), first)
	}
	for _, s := range e.tracker.Services() {
		for _, p := range s.Ports {
			d.ports[p.ID] = p
		}
	}
	return d
}

// update brings a data plane from an earlier desired state to this one.
func (d desired) update(next dataplane.Backend, before desired) {
	next.KeepUnknown(d.incomplete)
	if d.host != before.host {
		next.SetHost(d.host)
	}
	next.Update(d.since(before))
}

func (d desired) since(before desired) (deltas []model.Delta) {
	for id, p := range before.ports {
		if d.ports[id] == nil {
			deltas = append(deltas, model.Delta{Old: p})
		}
	}
	for id, p := range d.ports {
		if old := before.ports[id]; old != p {
			deltas = append(deltas, model.Delta{Old: old, New: p})
		}
	}
	return deltas
}

// candidate is a data plane that is not in use yet. One goroutine uses it at a time: that of
// Switch, and the engine's while Switch waits for it.
type candidate struct {
	DataPlane
	repaired []model.PortID // what its Syncs have reported
}

// programAll programs all ports. Those that fail are retried, a bounded number of times.
func (c *candidate) programAll(ctx context.Context) error {
	for try := 0; ; try++ {
		err := c.program(ctx)
		if err == nil || try == switchTries || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if !sleep.For(ctx, time.Until(c.Next())) {
			return ctx.Err()
		}
	}
}

// program is one attempt to program everything.
func (c *candidate) program(ctx context.Context) error {
	work, err := dataplane.SyncAll(ctx, c)
	c.repaired = append(c.repaired, work.Repaired...)
	h := c.Health()
	err = cmp.Or(err, h.Shared)
	if err == nil && len(h.Failures) == 0 {
		return nil
	}
	for id, failed := range h.Failures { // one of them says enough
		err = errors.Join(err, fmt.Errorf("%s: %w", id, failed))
		break
	}
	return fmt.Errorf("not everything can be programmed: %w", err)
}

// cutover is the result of an attempt: the data plane that was replaced when it is
// done; else the desired state that next has so far, and its failures.
type cutover struct {
	done bool
	old  DataPlane
	seen desired
	err  error
}

// cutOver gives a candidate what has changed since seen and makes it the one in use,
// unless the present one is being read back. It tries once, as all changes wait
// for it.
func (e *Engine) cutOver(ctx context.Context, next *candidate, seen desired) cutover {
	if ctx.Err() != nil || e.auditing != nil {
		return cutover{seen: seen}
	}
	now := e.desired()
	if now.unready != nil {
		return cutover{seen: seen, err: now.unready}
	}
	now.update(next, seen)
	if err := next.program(ctx); err != nil {
		return cutover{seen: now, err: err}
	}
	old := e.current.Swap(&next.DataPlane)
	e.repaired = next.repaired
	e.tracker.KeepSlots(next.Slots) // and nothing refers to the old one
	clear(e.reported)
	e.notApplied(e.turns.backlog.all()) // until the next sync: it has them
	e.states.recheck = true
	e.reportDataPlane()
	at := time.Now()
	e.checkAt, e.auditAt, e.notBefore, e.interrupted = at.Add(checkEvery), at.Add(e.auditEvery), time.Time{}, 0
	e.reader = nil // it reads the old one
	e.history.Arrived(history.Change{Kind: history.Mode, At: at.UnixNano(), Name: string(next.Mode.Name), Detail: "before: " + string(old.Mode.Name)})
	e.change(at)
	return cutover{done: true, old: *old}
}
