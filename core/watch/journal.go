package watch

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// patience is how long a failure must last to be worth a line: a server that
	// starts refuses everybody for a moment, until it has read its own rules.
	patience = time.Second
	// repeatLog is how often a failure that goes on is logged again.
	repeatLog = 5 * time.Minute
)

// journal logs failures of requests when they last, and when they are over: once,
// though several kinds of objects meet the same one. It is safe for concurrent
// use.
type journal struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[string]string   // what fails, by resource
	known   map[string]*failure // by text, since the last time that nothing failed
	since   time.Time           // of the first of them
	told    bool                // one of them was logged
	absent  map[string]bool     // what was said to be missing, for good
}

type failure struct{ first, said time.Time }

func newJournal(log *slog.Logger) *journal {
	return &journal{log: log, failing: map[string]string{}, known: map[string]*failure{}, absent: map[string]bool{}}
}

func (j *journal) failed(resource, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if len(j.failing) == 0 {
		j.since = now
	}
	j.failing[resource] = text
	f := j.known[text]
	if f == nil {
		f = &failure{first: now}
		j.known[text] = f
	}
	if now.Sub(f.first) < patience || now.Sub(f.said) < repeatLog {
		return
	}
	f.said, j.told = now, true
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
	clear(j.known)
	if j.told {
		j.told = false
		j.log.Info("the API server is followed again", "after", time.Since(j.since))
	}
}
