// SPDX-License-Identifier: Apache-2.0

package history

import (
	"slices"
	"sort"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Document is a part of a history. Its JSON form is stable: fields are added, not
// changed.
type Document struct {
	Total   uint64  `json:"total"` // changes since the start
	Entries []Entry `json:"entries"`
}

// Entry is a change, with the sync that applied it. A sync without a change, such as
// a retry or a repair, is an entry of its own.
type Entry struct {
	Number  uint64    `json:"number,omitempty"`
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Verb    string    `json:"verb"` // added, changed, deleted; for a sync alone: retried
	Object  string    `json:"object,omitempty"`
	Service string    `json:"service,omitempty"`
	Version uint64    `json:"resourceVersion,omitempty"`
	Age     Seconds   `json:"age,omitempty"` // of the change in the cluster when it arrived
	Count   int       `json:"count,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	Sync    *Applied  `json:"sync,omitempty"` // absent while it is not applied
}

// Applied is the sync of an entry. Its counts are those of all its changes together.
type Applied struct {
	Number   uint64             `json:"number"`
	At       time.Time          `json:"at"`
	Changes  uint64             `json:"changes"` // that it applied together
	Ports    int                `json:"ports"`   // Service ports that came out differently
	Created  int                `json:"created"`
	Replaced int                `json:"replaced"`
	Deleted  int                `json:"deleted"`
	Commits  int                `json:"commits"`
	Failed   int                `json:"failed,omitempty"`
	Deferred int                `json:"deferred,omitempty"`
	Repaired int                `json:"repaired,omitempty"`
	Full     bool               `json:"full,omitempty"`
	Took     Seconds            `json:"took"` // from the arrival to the end of the sync
	Stages   map[string]Seconds `json:"stages"`
	Err      string             `json:"error,omitempty"`
}

// Seconds is a duration, in JSON a number of seconds.
type Seconds float64

// Duration returns it with Go's type.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// Filter states which entries are requested.
type Filter struct {
	Service model.ServiceName `json:"service,omitzero"` // the zero one is all
	Failed  bool              `json:"failed,omitempty"` // only those whose sync failed in part
	Limit   int               `json:"limit,omitempty"`  // the newest so many; 0 is all
	After   uint64            `json:"after,omitempty"`  // only changes with a larger number
}

// Find returns entries, oldest first. It is safe for concurrent use.
func (r *Recorder) Find(f Filter) Document {
	changes, syncs := copyAll(&r.mu, &r.changes), copyAll(&r.mu, &r.syncs)
	r.mu.Lock()
	d := Document{Total: r.changes.count, Entries: []Entry{}}
	r.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		if c.Number <= f.After {
			continue
		}
		if f.Service != (model.ServiceName{}) && !c.about(f.Service) {
			continue
		}
		s := syncOf(syncs, c.Number)
		if f.Failed && (s == nil || s.Failed == 0 && s.Err == "") {
			continue
		}
		d.Entries = append(d.Entries, c.entry(s))
	}
	if f.Service == (model.ServiceName{}) {
		d.addUnmatched(syncs, f.Failed)
	}
	if f.Limit > 0 && len(d.Entries) > f.Limit {
		d.Entries = slices.Clone(d.Entries[len(d.Entries)-f.Limit:])
	}
	return d
}

// Select returns entries of a history that was read from elsewhere.
func (d Document) Select(f Filter) Document {
	name := f.Service.String()
	out := Document{Total: d.Total, Entries: []Entry{}}
	for _, e := range d.Entries {
		of := f.Service == (model.ServiceName{}) || e.Service == name || e.Object == name
		if of && (f.After == 0 || e.Number > f.After) && (!f.Failed || e.Sync != nil && (e.Sync.Failed > 0 || e.Sync.Err != "")) {
			out.Entries = append(out.Entries, e)
		}
	}
	if f.Limit > 0 && len(out.Entries) > f.Limit {
		out.Entries = out.Entries[len(out.Entries)-f.Limit:]
	}
	return out
}

// Stages ranges over the stages of the syncs that had changes, newest last: for
// histograms. It is safe for concurrent use.
func (r *Recorder) Stages() [][Stages]time.Duration {
	var all [][Stages]time.Duration
	for _, s := range copyAll(&r.mu, &r.syncs) {
		if s.To > s.From {
			all = append(all, s.Stages)
		}
	}
	return all
}

// syncOf returns the sync that took a change; nil where there was none yet, or it is
// forgotten.
func syncOf(syncs []Sync, change uint64) *Sync {
	i := sort.Search(len(syncs), func(i int) bool { return syncs[i].To > change })
	if i == len(syncs) || syncs[i].From > change {
		return nil
	}
	return &syncs[i]
}

// addUnmatched adds the syncs that no change belongs to, by time.
func (d *Document) addUnmatched(syncs []Sync, failed bool) {
	for i := range syncs {
		s := &syncs[i]
		if s.To > s.From || failed && s.Failed == 0 && s.Err == "" {
			continue
		}
		d.Entries = append(d.Entries, Entry{At: time.Unix(0, s.At), Kind: "Sync", Verb: "retried", Sync: s.applied(s.At)})
	}
	slices.SortStableFunc(d.Entries, func(a, b Entry) int { return a.At.Compare(b.At) })
}

func (c *Change) entry(s *Sync) Entry {
	e := Entry{
		Number: c.Number, At: time.Unix(0, c.At), Kind: c.Kind.String(), Verb: c.verb(),
		Version: c.Version, Age: Seconds(c.Age.Seconds()), Count: c.Count, Detail: c.Detail,
	}
	switch {
	case c.Namespace != "":
		e.Object = c.Namespace + "/" + c.Name
	default:
		e.Object = c.Name
	}
	if c.Service != "" {
		e.Service = c.Namespace + "/" + c.Service
	}
	if s != nil {
		e.Sync = s.applied(c.At)
	}
	return e
}

func (c *Change) verb() string {
	switch {
	case c.Kind == Drift:
		return "found"
	case c.Deleted:
		return "deleted"
	case c.Known:
		return "changed"
	}
	switch c.Kind {
	case Service, EndpointSlice, Route, Grant:
		return "added"
	}
	return "changed" // of the others it is not known
}

// applied describes a sync, to a change that arrived at a moment.
func (s *Sync) applied(arrived int64) *Applied {
	a := &Applied{
		Number: s.Number, At: time.Unix(0, s.At), Changes: s.To - s.From, Ports: s.Ports,
		Created: s.Created, Replaced: s.Replaced, Deleted: s.Deleted, Commits: s.Commits,
		Failed: s.Failed, Deferred: s.Deferred, Repaired: s.Repaired, Full: s.Full, Err: s.Err,
		Stages: map[string]Seconds{},
	}
	queued := max(0, time.Duration(s.At-arrived))
	took := queued
	a.Stages[Queue.String()] = Seconds(queued.Seconds())
	for stage := Resolve; stage < Stages; stage++ {
		a.Stages[stage.String()] = Seconds(s.Stages[stage].Seconds())
		took += s.Stages[stage]
	}
	a.Took = Seconds(took.Seconds())
	return a
}
