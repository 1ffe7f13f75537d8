// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	quietTime = 20 * time.Millisecond // no event for so long ends a burst
	burstTime = 10 * quietTime        // and no burst is longer
	scanTime  = 10 * time.Second      // between looks without an event, should events be lost
)

// Watch calls changed with the new content whenever the file's content differs from
// text, and then from that of the last call. It runs until ctx ends. A file that is
// absent or cannot be read is logged and is no change; neither is an empty one, which is
// being written.
func Watch(ctx context.Context, path string, text []byte, log *slog.Logger, changed func([]byte)) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("file notifications unavailable; scanning for changes", "file", path, "err", err)
		w = &fsnotify.Watcher{} // its channels are nil: they are never ready
	} else {
		defer w.Close()
	}
	last := sha256.Sum256(text)
	logged := "" // why the file could not be read the last time
	for {
		if err == nil {
			follow(w, path)
		}
		// A look after the folder is followed: what changed before is seen, too.
		now, unread := Read(path)
		logged = logOnce(log, unread, logged)
		if sum := sha256.Sum256(now); len(bytes.TrimSpace(now)) > 0 && sum != last {
			last = sum
			changed(now)
			continue
		}
		if !wait(ctx, w) {
			return
		}
	}
}

// logOnce logs why a file cannot be read, unless that was logged before, and returns
// what has been logged.
func logOnce(log *slog.Logger, err error, logged string) string {
	switch {
	case err == nil:
		return ""
	case err.Error() != logged:
		log.Warn("reading configuration failed; keeping the current one", "err", err)
	}
	return err.Error()
}

// follow watches the folder of the file: a file that is replaced is another one,
// and so is what the link ..data of a mounted ConfigMap points to. The folder
// may have been replaced itself; to add it again costs nothing.
func follow(w *fsnotify.Watcher, path string) {
	dirs := []string{filepath.Dir(path)}
	if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target)) // where a link leads
	}
	for _, old := range w.WatchList() {
		_ = w.Remove(old)
	}
	for _, dir := range dirs {
		_ = w.Add(dir) // the periodic scan finds what this misses
	}
}

// wait returns true when the file may have changed, false when ctx ends.
func wait(ctx context.Context, w *fsnotify.Watcher) bool {
	timer := time.NewTimer(scanTime)
	defer timer.Stop()
	var end time.Time // of the burst; zero before one
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-w.Events:
		case <-w.Errors: // most likely events were lost
		}
		if end.IsZero() {
			end = time.Now().Add(burstTime)
		}
		timer.Reset(min(quietTime, time.Until(end)))
	}
}
