// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	prose "github.com/tandem-proxy/tandem/core/printable"
)

// Resource is the state of following one kind of objects.
type Resource struct {
	Name     string    // endpointslices
	Optional bool      // forwarding does not depend on it
	Listed   bool      // a list has been read to its end, at least once
	Contact  time.Time // the last answer, event or bookmark; the start before the first

	Failing time.Time // since when requests fail; zero while they do not
	Err     string    // why, and what to do

	Version  string // resourceVersion up to which everything is known; empty before the first list
	Objects  int    // that are known
	Lists    uint64 // lists that the server began to send
	Watches  uint64 // watches begun, those that start with a list included
	Events   uint64 // bookmarks included
	Failures uint64 // requests that failed
}

// Age returns the time since the last answer, event or bookmark.
func (r Resource) Age(now time.Time) time.Duration { return max(0, now.Sub(r.Contact)) }

// stale returns why the state is stale at a time, or "".
func (r Resource) stale(now time.Time, limit time.Duration) string {
	why := ""
	if r.Err != "" {
		why = ": " + r.Err
	}
	age := r.Age(now)
	if !r.Failing.IsZero() {
		age = max(age, now.Sub(r.Failing))
	}
	switch {
	case r.Optional:
		return ""
	case !r.Listed:
		return fmt.Sprintf("%s not listed for %ds%s", r.Name, int(age.Seconds()), why)
	case age > limit:
		return fmt.Sprintf("watch of %s silent for %ds; keeping last known state%s", r.Name, int(age.Seconds()), why)
	}
	return ""
}

// resourceStatus is the state of following one kind of objects. It is safe for
// concurrent use.
type resourceStatus struct {
	log    *failureLog
	name   string
	server string

	mu sync.Mutex
	r  Resource
}

func newResourceStatus(k *kind, j *failureLog, server string) *resourceStatus {
	return &resourceStatus{log: j, name: k.key(), server: server, r: Resource{Name: k.key(), Optional: k.optional, Contact: time.Now()}}
}

func (v *resourceStatus) resource() Resource {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.r
}

func (v *resourceStatus) note(f func(*Resource)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(&v.r)
}

// list notes that the server began to send a list.
func (v *resourceStatus) list() { v.note(func(r *Resource) { r.Lists++ }) }

func (v *resourceStatus) watch() { v.note(func(r *Resource) { r.Watches++ }) }

// answered notes an answer.
func (v *resourceStatus) answered() { v.note(func(r *Resource) { r.Contact = time.Now() }) }

// event notes an event of a watch. One that is part of a list may be followed by
// a failure of that list each time; others prove that the watch works.
func (v *resourceStatus) event(works bool) {
	v.note(func(r *Resource) {
		r.Contact = time.Now()
		r.Events++
	})
	if works {
		v.works()
	}
}

// works records that a watch succeeds.
func (v *resourceStatus) works() {
	v.mu.Lock()
	failing := v.r.Failing
	v.r.Contact, v.r.Failing, v.r.Err = time.Now(), time.Time{}, ""
	v.mu.Unlock()
	if !failing.IsZero() {
		v.log.recovered(v.name)
	}
}

// unstreamable logs that lists come in pages.
func (v *resourceStatus) unstreamable(err error) {
	v.log.log.Debug("streaming list failed; using a paged list", "resource", v.name, "err", err)
}

func (v *resourceStatus) objects(n int) { v.note(func(r *Resource) { r.Objects = n }) }

// reached notes up to which version everything is known.
func (v *resourceStatus) reached(version string) { v.note(func(r *Resource) { r.Version = version }) }

func (v *resourceStatus) listed() { v.note(func(r *Resource) { r.Listed = true }) }

// failed notes a request that failed.
func (v *resourceStatus) failed(k *kind, err error) {
	text := explain(k, err, v.server)
	v.note(func(r *Resource) {
		r.Failures++
		if r.Failing.IsZero() {
			r.Failing = time.Now()
		}
		r.Err = text
	})
	v.log.failed(v.name, text)
}

// missing records that an optional kind of objects is not available. That is an answer: the
// server is reachable.
func (v *resourceStatus) missing(k *kind, err error) {
	text := explain(k, err, v.server)
	v.note(func(r *Resource) { r.Failures, r.Failing, r.Err = r.Failures+1, time.Time{}, text })
	v.log.recovered(v.name)
	v.log.missing(v.name, text)
}

const (
	// patience is how long a failure must last to be logged: a starting server
	// rejects all requests for a moment, until it has loaded its authorization rules.
	patience = time.Second
	// repeatLog is how often a persistent failure is logged again.
	repeatLog = 5 * time.Minute
	// repeatOther is how soon a failure with another text is logged; it doubles each
	// time, up to repeatLog, since a text may differ each time.
	repeatOther = 10 * time.Second
)

// failureLog logs requests that keep failing, and when they succeed again: once,
// though several kinds of objects meet the same one. It is safe for concurrent
// use.
type failureLog struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[string]*failure // by resource
	since   time.Time           // of the first of them
	logged  bool                // one of them was logged
	absent  map[string]bool     // kinds logged as missing
}

// failure is a lasting failure of one kind of objects.
type failure struct {
	first    time.Time     // since it was last followed
	loggedAt time.Time     // when it was last logged
	text     string        // what was logged
	other    time.Duration // how soon another text is logged
}

func newFailureLog(log *slog.Logger) *failureLog {
	return &failureLog{log: log, failing: map[string]*failure{}, absent: map[string]bool{}}
}

func (l *failureLog) failed(resource, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.failing) == 0 {
		l.since = now
	}
	f := l.failing[resource]
	if f == nil {
		f = &failure{first: now, other: repeatOther}
		l.failing[resource] = f
	}
	if now.Sub(f.first) < patience || !f.due(now, text) || l.loggedRecently(now, text) {
		return
	}
	if f.text != "" && f.text != text {
		f.other = min(2*f.other, repeatLog)
	}
	f.loggedAt, f.text, l.logged = now, text, true
	l.log.Warn("watching the API server failed; keeping last known state", "resource", resource, "err", text, "since", l.since)
}

func (f *failure) due(now time.Time, text string) bool {
	gap := f.other
	if text == f.text {
		gap = repeatLog
	}
	return now.Sub(f.loggedAt) >= gap
}

// loggedRecently reports whether a text was logged recently, for any kind of objects.
func (l *failureLog) loggedRecently(now time.Time, text string) bool {
	for _, f := range l.failing {
		if f.text == text && now.Sub(f.loggedAt) < repeatLog {
			return true
		}
	}
	return false
}

// missing logs, once, that an optional kind of objects is missing.
func (l *failureLog) missing(resource, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.absent[resource] {
		l.absent[resource] = true
		l.log.Warn("optional API resource not available; continuing without it", "resource", resource, "err", text)
	}
}

func (l *failureLog) recovered(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.failing, resource)
	if len(l.failing) > 0 {
		return
	}
	if l.logged {
		l.logged = false
		l.log.Info("watching the API server works again", "after", time.Since(l.since))
	}
}

// maxText bounds the text kept and logged of one failure, in bytes.
const maxText = 2 << 10

// explain returns why a request failed and what to do about it.
func explain(k *kind, err error, server string) string {
	return cut(reason(k, err, server), maxText)
}

func reason(k *kind, err error, server string) string {
	status := err.Error()
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("%s; bind the user to the ClusterRole system:node-proxier, or add to its role: "+
			`{apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`, status, k.version.Group, k.resource)
	case apierrors.IsUnauthorized(err):
		return "API server rejected the credentials: " + status + "; is the token or client certificate expired, or of another cluster?"
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("API server does not serve %s of %s: %s; is its version too old?", k.resource, k.version, status)
	case errors.As(err, new(apierrors.APIStatus)):
		return fmt.Sprintf("API server cannot serve %s: %s", k.groupResource(), status)
	}
	return fmt.Sprintf("API server %s: %v", server, prose.WithoutURL(err))
}
