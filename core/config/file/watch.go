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

// Watch calls changed with the new content whenever a file has another one than
// text, and then than it had at the last call. It runs until ctx ends. A file
// that is away or cannot be read is no change: the last content stands, and the
// log says why. An empty one is neither: it is being written.
func Watch(ctx context.Context, path string, text []byte, log *slog.Logger, changed func([]byte)) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file notifications, changes are found by scanning only", "file", path, "error", err)
		w = &fsnotify.Watcher{} // its channels are nil: they never speak
	} else {
		defer w.Close()
	}
	last := sha256.Sum256(text)
	said := "" // why the file could not be read at the last look
	for {
		if err == nil {
			follow(w, path)
		}
		// A look after the folder is followed: what changed before is seen, too.
		now, unread := Read(path)
		said = tell(log, unread, said)
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

// tell logs why a file cannot be read, unless that was said before, and returns
// what has been said.
func tell(log *slog.Logger, err error, said string) string {
	switch {
	case err == nil:
		return ""
	case err.Error() != said:
		log.Warn("the configuration stands as it is", "error", err)
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
		_ = w.Add(dir) // the scan finds what is missed
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
