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
	seen.give(next, view{})
	for refused := 0; ; {
		if err := settle(ctx, next); err != nil {
			return nil, err
		}
		// Whether it took place must be known: this does not end with ctx.
		done, err := ask(context.WithoutCancel(ctx), e, func(e *Engine) handOver { return e.handOver(ctx, next, seen) })
		if err != nil || done.old != nil {
			return done.old, err
		}
		if done.err != nil {
			refused++
		}
		if refused > switchTries {
			return nil, done.err
		}
		seen = done.seen
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

// give tells a data plane that was given an earlier view of this one.
func (v view) give(next dataplane.Backend, before view) {
	next.Spare(v.doubt)
	if v.host != before.host {
		next.SetHost(v.host)
	}
	next.Update(v.since(before))
}

// settle programs what a data plane was given. What it refuses is tried again,
// but not for ever.
func settle(ctx context.Context, next dataplane.Backend) error {
	for try := 0; ; try++ {
		err := program(ctx, next)
		if err == nil || try == switchTries || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if err := sleep(ctx, time.Until(next.Next())); err != nil {
			return err
		}
	}
}

// program is one attempt to program everything.
func program(ctx context.Context, next dataplane.Backend) error {
	_, err := next.Sync(ctx)
	ports, _ := next.Failing()
	if err == nil && len(ports) == 0 {
		return nil
	}
	return fmt.Errorf("not everything can be programmed: %w", errors.Join(err, anyOf(ports)))
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

// anyOf returns one of the failures of ports, or nil.
func anyOf(failures map[model.PortID]error) error {
	for id, err := range failures {
		return fmt.Errorf("%s: %w", id, err)
	}
	return nil
}

// handOver is the result of one: the backend that was replaced or, when that is
// nil, what next was given by now, and what it could not program of that.
type handOver struct {
	old  dataplane.Backend
	seen view
	err  error
}

// handOver gives next what has changed since a view and makes it the engine's,
// unless the present one is being read back. It tries once, as all changes wait
// for it.
func (e *Engine) handOver(ctx context.Context, next dataplane.Backend, seen view) handOver {
	if ctx.Err() != nil || e.auditing != nil {
		return handOver{seen: seen}
	}
	now := e.desired()
	now.give(next, seen)
	if err := program(ctx, next); err != nil {
		return handOver{seen: now, err: err}
	}
	old := e.Backend
	e.Backend = next
	e.tracker.KeepSlots(next.Slots) // and nothing keeps the old one
	clear(e.said)
	e.standing.afresh = true
	e.checkFull()
	at := time.Now()
	e.lookAt, e.auditAt, e.notAfter, e.interrupted = at.Add(lookEvery), at.Add(e.AuditEvery), time.Time{}, 0
	e.reader = nil // whatever still reads the old one
	e.change(at)
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
