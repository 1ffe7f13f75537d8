// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
)

// Switched is what a switch of modes did.
type Switched struct {
	From    config.Mode   `json:"from"`
	To      config.Mode   `json:"to"`
	Took    time.Duration `json:"took"`    // until the new mode served; in nanoseconds
	Objects int           `json:"objects"` // in the new data plane
	Gaps    []string      `json:"gaps,omitempty"`
	// Draining means that the old mode still has connections. It is
	// removed when they have ended.
	Draining bool `json:"draining,omitempty"`
}

// removalWait is how long a switch waits for the old mode to be removed before it
// reports that it drains.
const removalWait = 5 * time.Second

// switcher replaces the engine's data plane by one of another mode, and removes
// the old one when its connections have ended.
type switcher struct {
	engine     *engine.Engine
	network    network
	log        *slog.Logger
	modes      []dataplane.Mode // all there are
	privileged func() string    // as in system
	switched   func(from, to config.Mode)
	running    context.Context // ends with the proxy
	group      *sync.WaitGroup // of the proxy

	clean    chan struct{} // closed when leftovers of earlier runs were looked for
	turn     turn          // of the one switch at a time; guards retiring
	retiring map[config.Mode]retirement
}

// turn is a mutex whose Lock can be cancelled.
type turn chan struct{}

// take waits for the turn until ctx ends.
func (t turn) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// try takes the turn if that is free.
func (t turn) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turn) give() { <-t }

// switchTo changes the mode while Services are in use: the new one is programmed
// in parallel to the old one, becomes the one in use, and then the old one is removed. When
// ctx ends before that, or the new mode cannot program everything, everything stays
// as it was.
func (s *switcher) switchTo(ctx context.Context, to config.Mode, c *config.Config, phase func(string)) (Switched, error) {
	if !s.engine.Status().Synced { // leftovers of an earlier run in that mode may be the only rules that serve
		return Switched{}, engine.ErrNotReady
	}
	select { // that is soon done
	case <-s.clean:
	case <-ctx.Done():
		return Switched{}, ctx.Err()
	}
	if !s.turn.try() {
		return Switched{}, errors.New("another switch is under way")
	}
	defer s.turn.give()
	start := time.Now()
	from := s.engine.Current().Mode.Name
	mode, err := named(s.modes, to)
	if err != nil {
		return Switched{}, err
	}
	if mode.Name == from {
		return Switched{}, fmt.Errorf("the mode is %s already", to)
	}
	if err := s.cancelRetirement(ctx, mode.Name); err != nil {
		return Switched{}, err
	}
	phase(fmt.Sprintf("opening mode %s", to))
	next, err := s.open(ctx, mode, c)
	if err != nil {
		return Switched{}, fmt.Errorf("mode %s: %w", to, err)
	}
	phase(fmt.Sprintf("programming all Services in mode %s; %s serves until then", to, from))
	old, err := s.engine.Switch(ctx, next)
	if err != nil {
		err = fmt.Errorf("mode %s stays in use: mode %s: %w", from, to, err)
		return Switched{}, errors.Join(err, s.remove(context.WithoutCancel(ctx), next))
	}
	s.switched(from, to)
	done := Switched{From: from, To: to, Took: time.Since(start)}
	s.log.Info("mode switched", "from", from, "to", to, "took", done.Took)
	if snapshot, err := s.engine.Snapshot(ctx); err == nil {
		done.Objects, done.Gaps = snapshot.Backend.Objects, gapTexts(snapshot)
	}
	phase(fmt.Sprintf("mode %s in use; removing mode %s", to, from))
	done.Draining = s.retire(ctx, old)
	return done, nil
}

// gapTexts lists what the mode cannot do, each text once: most are of many ports.
func gapTexts(s *engine.Snapshot) (texts []string) {
	for _, gaps := range s.Backend.Gaps {
		for _, g := range gaps {
			texts = append(texts, g.Detail)
		}
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// open opens another mode in addition to the one in use.
func (s *switcher) open(ctx context.Context, mode dataplane.Mode, c *config.Config) (plane engine.DataPlane, err error) {
	plane.Mode = mode
	err = s.network.Do(func() (err error) {
		if err := Probe(ctx, mode); err != nil {
			return err
		}
		plane.Backend, err = mode.OpenWhenReady(ctx, c, s.log)
		return err
	})
	return plane, err
}

// retirement is an old mode that drains and is removed then.
type retirement struct {
	stop context.CancelFunc
	done chan struct{} // closed when it is over
}

// retire drains and removes an old mode in the background, and reports whether
// that takes longer than removalWait.
func (s *switcher) retire(waiting context.Context, old engine.DataPlane) (draining bool) {
	ctx, stop := context.WithCancel(s.running)
	r := retirement{stop, make(chan struct{})}
	s.retiring[old.Mode.Name] = r
	s.group.Go(func() {
		defer close(r.done)
		defer stop()
		switch err := s.drain(ctx, old); {
		case ctx.Err() != nil && s.running.Err() == nil:
			s.log.Info("old mode not removed; it will be used again", "mode", old.Mode.Name)
		case ctx.Err() != nil:
			s.log.Info("old mode not removed, it has connections; run tandem cleanup while no tandem runs", "mode", old.Mode.Name)
		case err != nil:
			s.log.Warn("removing old mode failed; run tandem cleanup while no tandem runs", "mode", old.Mode.Name, "err", err)
		}
	})
	select {
	case <-r.done:
		return false
	case <-time.After(removalWait):
	case <-waiting.Done():
	}
	return true
}

// cancelRetirement ends the retirement of a mode that is to be used again. What is
// left of it is adopted when it is opened again.
func (s *switcher) cancelRetirement(ctx context.Context, name config.Mode) error {
	r, ok := s.retiring[name]
	if !ok {
		return nil
	}
	r.stop()
	select {
	case <-r.done:
		delete(s.retiring, name)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mode %s is still being removed: %w", name, ctx.Err())
	}
}

// drain waits for the connections of a data plane, removes its objects and
// closes it. When ctx ends before, they stay.
func (s *switcher) drain(ctx context.Context, old engine.DataPlane) error {
	if err := old.Drain(ctx); err != nil {
		return errors.Join(fmt.Errorf("mode %s: drain: %w", old.Mode.Name, err), old.Close())
	}
	return s.remove(ctx, old)
}

// remove removes what a data plane programmed and closes it.
func (s *switcher) remove(ctx context.Context, plane engine.DataPlane) error {
	err := errors.Join(plane.Remove(ctx), plane.Close())
	if err != nil {
		return fmt.Errorf("remove mode %s: %w", plane.Mode.Name, err)
	}
	s.log.Debug("mode removed", "mode", plane.Mode.Name)
	return nil
}
