// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/track"
)

// monitored is the part of engine.Engine that a monitor uses.
type monitored interface {
	Current() engine.DataPlane
	Status() engine.Status
	SnapshotOf(ctx context.Context, pick func(*track.Tracker) []*track.View) (*engine.Snapshot, error)
	Concerned(ctx context.Context, to []model.Listener) (engine.Concerned, error)
}

// watcher looks at new connections while it is asked for them, and for askedFor longer. It is safe for concurrent use.
type watcher struct {
	engine  monitored
	network network
	open    func(dataplane.Mode) (source monitor.Source, notShown []string, err error) // of the system
	running context.Context
	group   *sync.WaitGroup

	mu    sync.Mutex
	ring  *monitor.Ring // nil while it does not look
	notes []string
	asked time.Time
	ended error // why the last one ended
}

// askedFor is how long a question is answered from what was seen since.
const askedFor = 10 * time.Second

// since returns what was seen from an event on. The first question begins it.
func (w *watcher) since(from uint64) (*monitor.Part, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = time.Now()
	if w.ring == nil {
		if err := w.begin(); err != nil {
			return nil, err
		}
	}
	p := w.ring.Since(from)
	p.NotShown = w.notes
	return &p, nil
}

// begin opens the source of the mode in use. mu is held.
func (w *watcher) begin() error {
	if err := w.ended; err != nil { // once: the next question begins again
		w.ended = nil
		return err
	}
	if w.running.Err() != nil {
		return w.running.Err()
	}
	plane := w.engine.Current()
	source, notes, err := w.source(plane)
	if err != nil {
		return err
	}
	t := &marker{watcher: w}
	if t.source, _ = source.(monitor.Tracer); t.source != nil {
		if err := t.update(); err != nil {
			return errors.Join(err, source.Close())
		}
	}
	ring := monitor.NewRing(time.Now())
	w.ring, w.notes = ring, notes
	w.group.Go(func() {
		err := errors.Join(w.watch(plane.Mode, source, t, ring), source.Close())
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ring, w.ended = nil, err
	})
	return nil
}

// source is that of a data plane.
func (w *watcher) source(plane engine.DataPlane) (source monitor.Source, notShown []string, err error) {
	if b, ok := plane.Backend.(relay.Backend); ok {
		return b.Watch(), []string{"clients that are rejected before a relay accepts them, such as those of Services without endpoints"}, nil
	}
	err = w.network.Do(func() error {
		source, notShown, err = w.open(plane.Mode)
		return err
	})
	return source, notShown, err
}

// watch looks until it was not asked for a while, or the mode is another.
func (w *watcher) watch(mode dataplane.Mode, source monitor.Source, t *marker, ring *monitor.Ring) error {
	tick := time.NewTicker(monitor.Every)
	defer tick.Stop()
	for w.wanted() && w.engine.Current().Mode.Name == mode.Name {
		select {
		case <-w.running.Done():
			return nil
		case <-tick.C:
		}
		events, err := w.look(source)
		if err == nil && t.source != nil {
			err = t.update()
		}
		if err != nil {
			return err
		}
		w.mu.Lock()
		ring.Add(events...)
		w.mu.Unlock()
	}
	return nil
}

// marker keeps a source informed of the frontends that may reject packets.
type marker struct {
	*watcher
	source monitor.Tracer // nil where nothing is traced
	at     time.Time      // of the last update
	syncs  uint64         // of the engine then
}

// retrace is the time between updates: each walks all Services, whichever of them have changed.
const retrace = time.Second

// update says which frontends those are, where they may have changed since the last time.
func (t *marker) update() error {
	now, syncs := time.Now(), t.engine.Status().Syncs
	if !t.at.IsZero() && (now.Sub(t.at) < retrace || syncs == t.syncs) {
		return nil
	}
	t.at, t.syncs = now, syncs
	s, err := t.engine.SnapshotOf(t.running, (*track.Tracker).Unsorted)
	if err != nil {
		return err
	}
	var all []monitor.Frontend
	for _, svc := range s.Each() {
		all = append(all, monitor.Rejecting(svc.Ports)...)
	}
	return t.network.Do(func() error { return t.source.Trace(t.running, all) })
}

func (w *watcher) wanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.asked) < askedFor
}

// look returns the events since the last one.
func (w *watcher) look(source monitor.Source) (events []monitor.Event, err error) {
	var all []monitor.Seen
	var more bool
	err = w.network.Do(func() error {
		more, err = source.Look(func(s monitor.Seen) { all = append(all, s) })
		return err
	})
	if err != nil {
		return nil, err
	}
	if events, err = w.join(all); err != nil {
		return nil, err
	}
	now := time.Now()
	if events = monitor.Share(events, now); more {
		events = append(events, monitor.Event{At: now, Unread: true})
	}
	return events, nil
}

// join returns the events of packets that were sent to Services. The engine is asked once.
func (w *watcher) join(all []monitor.Seen) (events []monitor.Event, err error) {
	var places []model.Listener
	for _, s := range all {
		if s.To.IsValid() {
			places = append(places, model.Listener{Proto: s.Proto, At: s.To})
		}
	}
	slices.SortFunc(places, model.Listener.Compare)
	places = slices.Compact(places)
	var of engine.Concerned
	if len(places) > 0 {
		if of, err = w.engine.Concerned(w.running, places); err != nil || of.Host == nil {
			return nil, err
		}
	}
	ports := make([][]*model.Port, len(places))
	for i, services := range of.Services {
		for _, s := range services {
			ports[i] = append(ports[i], s.Ports...)
		}
	}
	for _, s := range all {
		var these []*model.Port
		if i, ok := slices.BinarySearchFunc(places, model.Listener{Proto: s.Proto, At: s.To}, model.Listener.Compare); ok {
			these = ports[i]
		}
		if e, ok := monitor.Of(of.Host, these, s); ok {
			events = append(events, e)
		}
	}
	return events, nil
}
