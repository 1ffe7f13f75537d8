package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// ErrNotReady says that there is nothing yet that could be switched.
var ErrNotReady = errors.New("nothing has been programmed yet: try again when the proxy is healthy")

const (
	switchTries = 20 // how often what the next data plane refuses is tried again
	switchPause = 20 * time.Millisecond
)

// Switch moves everything to another data plane while both work. Next is brought
// to the desired state beside the present one, at its own pace and without a
// change having to wait; then, between two syncs, it is given what has changed
// meanwhile and takes over. At no moment is neither of them complete.
//
// It returns the backend that was replaced, which still has everything: the
// caller removes that and closes it. After an error nothing has changed, and
// next is the caller's to remove.
func (e *Engine) Switch(ctx context.Context, next dataplane.Backend) (old dataplane.Backend, err error) {
	seen, err := ask(ctx, e, (*Engine).desired)
	if err != nil {
		return nil, err
	}
	if !seen.ready {
		return nil, ErrNotReady
	}
	if err := next.Adopt(ctx); err != nil {
		return nil, fmt.Errorf("read back what is there: %w", err)
	}
	next.Spare(seen.doubt)
	if err := seen.give(ctx, next, view{}); err != nil {
		return nil, err
	}
	for {
		// Whether it took place must be known: this does not end with ctx.
		done, err := ask(context.WithoutCancel(ctx), e, func(e *Engine) handOver { return e.handOver(ctx, next, seen) })
		if err = errors.Join(err, done.err); err != nil || done.old != nil {
			return done.old, err
		}
		if err := sleep(ctx, switchPause); err != nil {
			return nil, err
		}
	}
}

// view is the desired state at one moment.
type view struct {
	host  *model.Host
	ports map[model.PortID]*model.Port
	doubt bool
	ready bool
}

func (e *Engine) desired() view {
	v := view{host: e.tracker.Host(), ports: map[model.PortID]*model.Port{}, doubt: e.doubt}
	v.ready = e.adopted && e.told && e.Status().Synced
	for _, s := range e.tracker.Services() {
		for _, p := range s.Ports {
			v.ports[p.ID] = p
		}
	}
	return v
}

// give brings a data plane that has seen an earlier view up to date. What it
// refuses is tried again, but not for ever.
func (v view) give(ctx context.Context, next dataplane.Backend, before view) error {
	if v.host != before.host {
		next.SetHost(v.host)
	}
	next.Update(v.since(before))
	for try := 0; ; try++ {
		_, err := next.Sync(ctx)
		if err == nil && len(next.Health().Failures) == 0 {
			return nil
		}
		if try == switchTries || ctx.Err() != nil {
			return fmt.Errorf("not everything can be programmed: %w", errors.Join(err, ctx.Err(), failing(next)))
		}
		if err := sleep(ctx, time.Until(next.Next())); err != nil {
			return err
		}
	}
}

func (v view) since(before view) (deltas []model.Delta) {
	for id, p := range before.ports {
		if v.ports[id] == nil {
			deltas = append(deltas, model.Delta{Old: p})
		}
	}
	for id, p := range v.ports {
		if old := before.ports[id]; old != p {
			deltas = append(deltas, model.Delta{Old: old, New: p})
		}
	}
	return deltas
}

func failing(b dataplane.Backend) error {
	for id, err := range b.Health().Failures {
		return fmt.Errorf("%s: %w", id, err)
	}
	return nil
}

// handOver is the result of one: the backend that was replaced, an error, or
// nothing: try again.
type handOver struct {
	old dataplane.Backend
	err error
}

// handOver gives next what has changed since a view and makes it the engine's,
// unless the present one is being read back.
func (e *Engine) handOver(ctx context.Context, next dataplane.Backend, seen view) handOver {
	if ctx.Err() != nil || e.auditing {
		return handOver{err: ctx.Err()}
	}
	if err := e.desired().give(ctx, next, seen); err != nil {
		return handOver{err: err}
	}
	old := e.Backend
	e.Backend = next
	clear(e.said)
	e.standing.afresh = true
	now := time.Now()
	e.lookAt, e.auditAt, e.notAfter, e.failed = now.Add(lookEvery), now.Add(e.AuditEvery), time.Time{}, 0
	e.change(now)
	return handOver{old: old}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
