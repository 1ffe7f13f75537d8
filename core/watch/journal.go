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
	// repeatOther is how soon it is logged again when its text is another; each
	// time that doubles, up to repeatLog: a text may be another each time.
	repeatOther = 10 * time.Second
)

// journal logs failures of requests when they last, and when they are over: once,
// though several kinds of objects meet the same one. It is safe for concurrent
// use.
type journal struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[string]*failure // by resource
	since   time.Time           // of the first of them
	told    bool                // one of them was logged
	absent  map[string]bool     // what was said to be missing, for good
}

// failure is that of one kind of objects, whatever its texts are.
type failure struct {
	first time.Time     // since it was last followed
	said  time.Time     // when it was last logged
	text  string        // what was logged
	other time.Duration // how soon another text is logged
}

func newJournal(log *slog.Logger) *journal {
	return &journal{log: log, failing: map[string]*failure{}, absent: map[string]bool{}}
}

func (j *journal) failed(resource, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if len(j.failing) == 0 {
		j.since = now
	}
	f := j.failing[resource]
	if f == nil {
		f = &failure{first: now, other: repeatOther}
		j.failing[resource] = f
	}
	if now.Sub(f.first) < patience || !f.due(now, text) || j.said(now, text) {
		return
	}
	if f.text != "" && f.text != text {
		f.other = min(2*f.other, repeatLog)
	}
	f.said, f.text, j.told = now, text, true
	j.log.Warn("the API server cannot be followed, what it said last stands", "resource", resource, "error", text, "since", j.since)
}

func (f *failure) due(now time.Time, text string) bool {
	gap := f.other
	if text == f.text {
		gap = repeatLog
	}
	return now.Sub(f.said) >= gap
}

// said reports whether a text was logged not long ago, of any kind of objects.
func (j *journal) said(now time.Time, text string) bool {
	for _, f := range j.failing {
		if f.text == text && now.Sub(f.said) < repeatLog {
			return true
		}
	}
	return false
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
	if j.told {
		j.told = false
		j.log.Info("the API server is followed again", "after", time.Since(j.since))
	}
}
