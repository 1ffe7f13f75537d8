package watch

import (
	"log/slog"
	"sync"
	"time"
)

// repeatLog is how often a failure that goes on is logged again.
const repeatLog = 5 * time.Minute

// journal logs failures of requests when they begin, now and then while they
// last, and when they are over: once, though several kinds of objects meet the
// same one. It is safe for concurrent use.
type journal struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[string]string    // what fails, by resource
	said    map[string]time.Time // when a failure was logged
	since   time.Time            // of the first of them
	absent  map[string]bool      // what was said to be missing, for good
}

func newJournal(log *slog.Logger) *journal {
	return &journal{log: log, failing: map[string]string{}, said: map[string]time.Time{}, absent: map[string]bool{}}
}

func (j *journal) failed(resource, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if len(j.failing) == 0 {
		j.since = now
	}
	j.failing[resource] = text
	if last, ok := j.said[text]; ok && now.Sub(last) < repeatLog {
		return
	}
	j.said[text] = now
	j.log.Warn("the API server cannot be followed, what it said last stands", "resource", resource, "error", text, "since", j.since)
}

// without logs, once, that a kind of objects that we can do without is missing.
func (j *journal) without(resource, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.absent[resource] {
		j.absent[resource] = true
		j.log.Warn("the API server does not show a kind of objects, going on without", "resource", resource, "error", text)
	}
}

func (j *journal) recovered(resource string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.failing, resource)
	if len(j.failing) > 0 {
		return
	}
	clear(j.said)
	j.log.Info("the API server is followed again", "after", time.Since(j.since))
}
