package manifests

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// watcher waits for changes in a folder, or of a single file in one. Where the
// system offers no notifications it only sleeps.
type watcher struct {
	path   string
	file   string // the single file's name; empty for a folder
	log    *slog.Logger
	notify *fsnotify.Watcher // nil if there is none
	info   os.FileInfo       // the folder that is watched; nil if none is
}

func newWatcher(path string, log *slog.Logger) *watcher {
	w := &watcher{path: path, log: log}
	if path == Stdin {
		return w
	}
	n, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("No file notifications, changes are found by scanning only", "manifests", path, "err", err)
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

// renew watches the folder that now has the name: the old one may have been
// moved away or replaced, or may be reached through a link that was changed.
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
		_ = w.notify.Remove(name) // it may be gone by itself
	}
	w.info = nil
	if err != nil {
		return
	}
	if err := w.notify.Add(dir); err != nil {
		w.log.Warn("No file notifications, changes are found by scanning only", "manifests", w.path, "err", err)
		return
	}
	w.info = info
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
