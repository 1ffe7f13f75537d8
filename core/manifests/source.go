// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/strictyaml"
	"github.com/tandem-proxy/tandem/core/watch"
)

// Source watches a folder, or a single file, and passes changes to a model.Sink. The
// standard input is read once.
//
// A change is delivered a few milliseconds after the last write of a burst. If the
// system loses or lacks notifications, a periodic scan finds the change. A Node that
// is removed is not reported: the last one is kept, as it does for kube-proxy.
type Source struct {
	Dir       string           // a folder, a file or Stdin
	NodePorts config.PortRange // that Services may have
	Log       *slog.Logger     // slog.Default if nil
	Scan      time.Duration    // between slow scans; 3 s if 0

	failing atomic.Pointer[failure] // nil while it can be read
}

// failure is why a folder cannot be read, and since when.
type failure struct {
	since time.Time
	err   error
}

// patience is how long a folder may be missing before it is reported as stale: a
// mount is replaced within moments.
const patience = 10 * time.Second

// Stale returns why the folder could not be read for a while, "" if it could. Its
// last content is kept. It may be called from any goroutine.
func (s *Source) Stale(now time.Time) []string {
	f := s.failing.Load()
	if f == nil || now.Sub(f.since) < patience {
		return nil
	}
	return []string{fmt.Sprintf("manifests %s unreadable for %ds; keeping last known state: %v", strictyaml.Printable(s.Dir), int(now.Sub(f.since).Seconds()), f.err)}
}

// Age returns the time since the folder was last read, if that is longer than the
// time between two scans.
func (s *Source) Age(now time.Time) time.Duration {
	if f := s.failing.Load(); f != nil {
		return max(0, now.Sub(f.since))
	}
	return 0
}

const (
	quietTime  = 2 * time.Millisecond  // no write for so long ends a burst
	burstTime  = 20 * time.Millisecond // and no burst is longer
	scanTime   = 3 * time.Second
	scanEffort = 50 // periodic scans may take 1/50 of the time
)

// Run delivers the content of the folder, and then its changes until ctx ends;
// then it returns nil. It returns an error if the folder cannot be listed at
// the start. Later that is a Problem, and the last known state is kept.
func (s *Source) Run(ctx context.Context, sink model.Sink) error {
	w := newWatcher(s.Dir, s.log())
	defer w.close()
	if watch.WorldWritable(s.Dir) {
		s.log().Warn("manifests are world-writable, so any local user can redirect Services; run chmod o-w", "manifests", s.Dir)
	}
	d := newDelivery(sink, newReader(originOf(s.Dir), s.Dir, s.NodePorts))
	if err := d.scan(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("manifests %s: %w", strictyaml.Printable(s.Dir), err)
	}
	if s.Dir == Stdin {
		<-ctx.Done()
		return nil
	}
	for {
		again := s.pause(d)
		if !w.wait(ctx, again) {
			return nil
		}
		err := d.scan(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.note(err)
		if err != nil {
			d.lost(err)
		}
		w.renew()
	}
}

// note records since when the folder cannot be read.
func (s *Source) note(err error) {
	switch f := s.failing.Load(); {
	case err == nil:
		s.failing.Store(nil)
	case f == nil:
		s.failing.Store(&failure{time.Now(), err})
	default:
		s.failing.Store(&failure{f.since, err})
	}
}

// pause returns when to scan next without being notified.
func (s *Source) pause(d *delivery) time.Duration {
	if d.unsettled {
		return settleTime
	}
	every := s.Scan
	if every == 0 {
		every = scanTime
	}
	return max(every, scanEffort*d.took)
}

func (s *Source) log() *slog.Logger {
	if s.Log == nil {
		return slog.Default()
	}
	return s.Log
}

// delivery is the state that was passed to the sink.
type delivery struct {
	sink      model.Sink
	reader    *reader
	delivered *folder
	problems  []Problem
	unsettled bool
	whole     *bool // as passed on; nil before
	took      time.Duration
}

func newDelivery(sink model.Sink, r *reader) *delivery {
	return &delivery{sink: sink, reader: r, delivered: &folder{}}
}

// scan reads the folder and delivers the differences: additions and changes before
// deletions, so that renaming a Service does not interrupt it.
func (d *delivery) scan(ctx context.Context) error {
	start := time.Now()
	f, err := d.reader.scan(ctx)
	d.took = time.Since(start)
	if err != nil {
		return err
	}
	d.unsettled = f.unsettled
	if f == d.delivered {
		d.report(f.problems) // it may have been lost meanwhile
		return nil
	}
	if f.before != nil && f.before == d.delivered {
		d.edit(f)
	} else {
		known, gone := f.compare(d.delivered)
		for i, p := range f.objects {
			if !known[i] {
				d.set(p.moved())
			}
		}
		for _, p := range gone {
			d.delete(p.object)
		}
	}
	// A folder without any object that is read is not whole: it may not be mounted yet.
	if whole := !f.doubtful && len(f.objects) > 0; d.whole == nil || *d.whole != whole {
		d.whole = &whole
		d.sink.Unread(model.Unread{ServiceCIDRs: !whole, Endpoints: !whole}) // for a Node or a route in it one bad file would hold up all others
		d.sink.Synced(whole)
	}
	f.index, f.before, f.edits = nil, nil, nil // memory: the index is as large as all the rest
	d.delivered = f
	d.report(f.problems)
	return nil
}

// compare returns which objects are equal to those of an older state of the folder,
// and which ones are gone. Most are found at their old position.
func (f *folder) compare(old *folder) (known []bool, gone []placed) {
	known = make([]bool, len(f.objects))
	for i, p := range old.objects {
		at, ok := i, i < len(f.objects) && f.objects[i].object == p.object
		if !ok {
			at, ok = f.index[p.key]
		}
		switch {
		case !ok || !f.objects[at].usable():
			gone = append(gone, p)
		case f.objects[at].same(p.object):
			known[at] = true
		}
	}
	return known, gone
}

// edit delivers the edits of a folder.
func (d *delivery) edit(f *folder) {
	for _, e := range f.edits {
		if now := f.objects[e.at]; now.usable() && !now.same(e.other.object) {
			d.set(now.moved())
		}
	}
	for _, e := range f.edits {
		if !f.objects[e.at].usable() {
			d.delete(e.other.object)
		}
	}
}

func (d *delivery) set(o *object) {
	if o.usable() {
		d.sink.Set(o.value)
	}
}

func (d *delivery) delete(o *object) {
	if o.usable() {
		d.sink.Delete(o.value)
	}
}

// lost records that the folder cannot be listed any more.
func (d *delivery) lost(err error) {
	dir := d.reader.dir
	d.report([]Problem{{File: dir, Object: "folder", Text: err.Error() + "; keeping last known state", Why: model.WhyInvalid}})
}

func (d *delivery) report(ps []Problem) {
	if slices.Equal(ps, d.problems) {
		return
	}
	d.problems = ps
	d.sink.Problems(Models(ps))
}

// watcher waits for changes in a folder, or of a single file in one. Where the
// system offers no notifications it only sleeps.
type watcher struct {
	path   string
	file   string // the single file's name; empty for a folder
	log    *slog.Logger
	notify *fsnotify.Watcher // nil if there is none
	info   os.FileInfo       // the folder that is watched; nil if none is

	lacking bool // the folder cannot be watched, which was said
}

func newWatcher(path string, log *slog.Logger) *watcher {
	w := &watcher{path: path, log: log}
	if path == Stdin {
		return w
	}
	n, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("file notifications unavailable; scanning for changes", "manifests", path, "err", err)
		return w
	}
	w.notify = n
	w.renew()
	return w
}

func (w *watcher) close() {
	if w.notify != nil {
		w.notify.Close()
	}
}

// renew watches the folder that the name refers to now: the folder may have been
// moved or replaced, or a link to it changed.
func (w *watcher) renew() {
	if w.notify == nil {
		return
	}
	dir := w.path
	info, err := os.Stat(dir)
	w.file = ""
	if err == nil && !info.IsDir() {
		w.file, dir = filepath.Base(dir), filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if err == nil && w.info != nil && os.SameFile(info, w.info) && len(w.notify.WatchList()) > 0 {
		return
	}
	for _, name := range w.notify.WatchList() {
		_ = w.notify.Remove(name) // it may have been removed already
	}
	w.info = nil
	if err != nil {
		return
	}
	if err := w.notify.Add(dir); err != nil {
		level := slog.LevelWarn // the first time; each scan tries it again
		if w.lacking {
			level = slog.Level(-2) // --v=2
		}
		w.lacking = true
		w.log.Log(context.Background(), level, "file notifications unavailable; scanning for changes", "manifests", w.path, "err", err)
		return
	}
	w.info, w.lacking = info, false
}

// wait returns true when the folder may have changed, at the latest after a
// time, and false when ctx ends. Events that belong together are waited for.
func (w *watcher) wait(ctx context.Context, most time.Duration) bool {
	var events chan fsnotify.Event
	var failures chan error
	if w.notify != nil {
		events, failures = w.notify.Events, w.notify.Errors
	}
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-deadline.C:
			return true
		case <-quiet:
			return true
		case <-failures: // most likely events were lost
			return true
		case e := <-events:
			if !w.concerns(e) {
				continue
			}
			if quiet == nil {
				deadline.Reset(min(most, burstTime))
			}
			quiet = time.After(quietTime)
		}
	}
}

// concerns reports whether an event can change what is read. "..data" is the
// link by which a mounted ConfigMap is switched as a whole.
func (w *watcher) concerns(e fsnotify.Event) bool {
	name := filepath.Base(e.Name)
	return w.file == "" && isManifest(name) || name == w.file || name == "..data" || e.Has(fsnotify.Remove|fsnotify.Rename)
}
