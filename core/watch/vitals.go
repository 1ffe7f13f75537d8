package watch

import (
	"fmt"
	"sync"
	"time"
)

// Resource is what is known of following one kind of objects.
type Resource struct {
	Name     string    // endpointslices
	Optional bool      // forwarding does not depend on it
	Listed   bool      // all there was has been read, at least once
	Contact  time.Time // the last sign of life: an answer, an event or a bookmark; the start before the first

	Failing time.Time // since when requests fail; zero while they do not
	Err     string    // why, and what to do

	Objects  int    // that are known
	Lists    uint64 // how often everything was asked for
	Watches  uint64 // watches begun, those that start with a list included
	Events   uint64 // bookmarks included
	Failures uint64 // requests that failed
}

// Age returns how long ago the last sign of life was.
func (r Resource) Age(now time.Time) time.Duration { return max(0, now.Sub(r.Contact)) }

// stale returns what is wrong at a moment, or "".
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
		return fmt.Sprintf("%s have not been read yet, for %ds%s", r.Name, int(age.Seconds()), why)
	case age > limit:
		return fmt.Sprintf("watch of %s silent since %ds, what they said last stands%s", r.Name, int(age.Seconds()), why)
	}
	return ""
}

// vitals are the signs of life of one follower. It is safe for concurrent use.
type vitals struct {
	journal *journal
	name    string
	server  string

	mu sync.Mutex
	r  Resource
}

func newVitals(k *kind, j *journal, server string) *vitals {
	return &vitals{journal: j, name: k.resource, server: server, r: Resource{Name: k.resource, Optional: k.optional, Contact: time.Now()}}
}

func (v *vitals) resource() Resource {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.r
}

func (v *vitals) note(f func(*Resource)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(&v.r)
}

func (v *vitals) list() { v.note(func(r *Resource) { r.Lists++ }) }

func (v *vitals) watch(listing bool) {
	v.note(func(r *Resource) {
		r.Watches++
		if listing {
			r.Lists++
		}
	})
}

// answered notes an answer.
func (v *vitals) answered() { v.note(func(r *Resource) { r.Contact = time.Now() }) }

// event notes an event of a watch. One that is part of a list may be followed by
// a failure of that list, each time anew; others say that the watch works.
func (v *vitals) event(works bool) {
	v.note(func(r *Resource) {
		r.Contact = time.Now()
		r.Events++
	})
	if works {
		v.works()
	}
}

// works notes that a watch does what it should.
func (v *vitals) works() {
	v.mu.Lock()
	failing := v.r.Failing
	v.r.Contact, v.r.Failing, v.r.Err = time.Now(), time.Time{}, ""
	v.mu.Unlock()
	if !failing.IsZero() {
		v.journal.recovered(v.name)
	}
}

// unstreamable logs that lists come in pages.
func (v *vitals) unstreamable(err error) {
	v.journal.log.Debug("streaming list failed; using a paged list", "resource", v.name, "err", err)
}

func (v *vitals) objects(n int) { v.note(func(r *Resource) { r.Objects = n }) }

func (v *vitals) listed() { v.note(func(r *Resource) { r.Listed = true }) }

// failed notes a request that failed.
func (v *vitals) failed(k *kind, err error) {
	text := explain(k, err, v.server)
	v.note(func(r *Resource) {
		r.Failures++
		if r.Failing.IsZero() {
			r.Failing = time.Now()
		}
		r.Err = text
	})
	v.journal.failed(k.resource, text)
}

// missing notes that there are no objects of an optional kind to be had.
func (v *vitals) missing(k *kind, err error) {
	text := explain(k, err, v.server)
	v.note(func(r *Resource) { r.Failures, r.Err = r.Failures+1, text })
	v.journal.without(k.resource, text)
}
