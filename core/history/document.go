// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// Document is a part of a history. Its JSON form is stable: fields are added, not
// changed.
type Document struct {
	Total   uint64   `json:"total" nodes:"-"` // changes since the start
	Entries []Entry  `json:"entries"`
	Hour    []Minute `json:"hour,omitempty" nodes:"-"` // the last minutes, oldest first; with a filter of Service or number none
}

// Entry is a change, with the sync that applied it. A sync without a change, such as
// a retry or a repair, is an entry of its own.
type Entry struct {
	Number  uint64    `json:"number,omitempty" nodes:"-"`
	At      time.Time `json:"at" nodes:"-"`
	Kind    string    `json:"kind" nodes:"key"`
	Verb    string    `json:"verb" nodes:"key"` // added, changed, deleted; for a sync alone: retried
	Object  string    `json:"object,omitempty" nodes:"key"`
	Service string    `json:"service,omitempty"`
	Version uint64    `json:"resourceVersion,omitempty" nodes:"key"`
	Age     Seconds   `json:"age,omitempty" nodes:"-"` // of the change in the cluster when it arrived
	Count   int       `json:"count,omitempty"`
	Detail  string    `json:"detail,omitempty"`         // what it changed, of a Service or an EndpointSlice: "endpoint 10.1.2.3 added"
	Sync    *Applied  `json:"sync,omitempty" nodes:"-"` // absent while it is not applied
}

// Applied is the sync of an entry. Its counts are those of all its changes together.
type Applied struct {
	Number   uint64    `json:"number"`
	At       time.Time `json:"at"`
	Changes  uint64    `json:"changes"` // that it applied together
	Ports    int       `json:"ports"`   // Service ports that came out differently
	Created  int       `json:"created"`
	Replaced int       `json:"replaced"`
	Deleted  int       `json:"deleted"`
	Commits  int       `json:"commits"`
	Failed   int       `json:"failed,omitempty"`
	Deferred int       `json:"deferred,omitempty"`
	Repaired int       `json:"repaired,omitempty"`
	Full     bool      `json:"full,omitempty"`
	Took     Seconds   `json:"took"` // from the arrival to the end of the sync
	Stages   Times     `json:"stages"`
	Err      string    `json:"error,omitempty"`
}

// Times are how long each stage took.
type Times struct {
	Queue   Seconds `json:"queue"`
	Resolve Seconds `json:"resolve"`
	Compile Seconds `json:"compile"`
	Write   Seconds `json:"write"`
}

// Of returns the time of a stage.
func (t *Times) Of(s Stage) Seconds {
	return [Stages]Seconds{t.Queue, t.Resolve, t.Compile, t.Write}[s]
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
func (r *Recorder) Find(f Filter) Document { return Whole(r.List(f)) }

// Whole is a document with the entries of its list.
func Whole(d Document, n int, each iter.Seq[*Entry]) Document {
	d.Entries = make([]Entry, 0, n)
	for e := range each {
		own := *e
		if e.Sync != nil {
			own.Sync = new(Applied)
			*own.Sync = *e.Sync
		}
		d.Entries = append(d.Entries, own)
	}
	return d
}

// record is an entry of a list: a change, or a sync alone, with where each is in what was copied; -1 for none, and
// below that the kept change -2-i with its sync. Its place is by number, as clocks are set back: a sync without a
// change follows the changes before it.
type record struct {
	place        uint64
	change, sync int32
}

// List returns a document without its entries, how many there are, and these, oldest first, made one at a time: each is
// valid until the next. With a limit it looks at no more than twice as many: that number of changes, and that number of
// syncs without a change. It is safe for concurrent use.
func (r *Recorder) List(f Filter) (d Document, n int, each iter.Seq[*Entry]) {
	all, most := f.Service == (model.ServiceName{}), Most
	if f.Limit > 0 && all && !f.Failed && f.After == 0 {
		most = min(most, f.Limit) // of a change whose sync is older than these, as many newer entries are there
	}
	r.mu.Lock()
	fromChange, fromSync := r.changes.last(most), r.syncs.last(most)
	r.mu.Unlock()
	// The syncs are those up to now, after the changes: a change applied meanwhile is shown with its sync.
	changes, firstChange := copyFrom(&r.mu, &r.changes, fromChange)
	syncs, firstSync := copyFrom(&r.mu, &r.syncs, fromSync)
	r.mu.Lock() // later: what has left the ring meanwhile is among the kept, or in both
	longer := slices.Concat(r.kept[r.keptAt:], r.kept[:r.keptAt])
	r.mu.Unlock()
	d = Document{Total: firstChange + uint64(len(changes)) - 1, Entries: []Entry{}}
	if all && f.After == 0 {
		now := time.Now().UnixNano()
		r.measure(now, true)
		r.mu.Lock()
		d.Hour = r.hour.list(now)
		r.mu.Unlock()
	}
	syncAt := func(i int) *synced { return &syncs[i] }
	records := make([]record, 0, len(changes))
	for i := len(changes) - 1; i >= 0 && !f.filled(len(records)); i-- {
		c, number := &changes[i], firstChange+uint64(i)
		if number <= f.After || len(syncs) > 0 && number < syncs[0].from() { // what has become of it is forgotten, or not requested
			break
		}
		sync := syncOf(len(syncs), syncAt, number)
		if all || c.about.concerns(f.Service) {
			if !f.Failed || sync >= 0 && syncs[sync].failed() {
				records = append(records, record{number, int32(i), int32(sync)})
			}
		}
	}
	for i := len(longer) - 1; i >= 0 && !f.filled(len(records)); i-- {
		k := &longer[i]
		if k.number >= firstChange {
			continue
		}
		if k.number <= f.After {
			break
		}
		if (all || k.about.concerns(f.Service)) && (!f.Failed || k.sync.failed()) {
			records = append(records, record{k.number, int32(-2 - i), -1})
		}
	}
	slices.Reverse(records)
	if all {
		matched := len(records)
		for i := len(syncs) - 1; i >= 0 && !f.filled(len(records)-matched); i-- { // those that no change belongs to
			if s := &syncs[i]; s.changes == 0 && (!f.Failed || s.failed()) {
				records = append(records, record{s.to - 1, -1, int32(i)})
			}
		}
		slices.Reverse(records[matched:])
		slices.SortStableFunc(records, func(a, b record) int { return cmp.Compare(a.place, b.place) })
		if f.Limit > 0 && len(records) > f.Limit {
			records = records[len(records)-f.Limit:]
		}
	}
	return d, len(records), func(yield func(*Entry) bool) {
		var e Entry
		var sync Applied
		for _, r := range records {
			var arrived int64
			switch {
			case r.change >= 0:
				e, arrived = changes[r.change].entry(firstChange+uint64(r.change)), changes[r.change].at
			case r.change < -1:
				k := &longer[-2-r.change]
				sync = k.sync.applied(k.syncNumber, k.at)
				e = k.entry(k.number)
				e.Sync = &sync
			default:
				arrived = syncs[r.sync].at
				e = Entry{At: time.Unix(0, arrived), Kind: "Sync", Verb: "retried"}
			}
			if r.sync >= 0 {
				sync = syncs[r.sync].applied(firstSync+uint64(r.sync), arrived)
				e.Sync = &sync
			}
			if !yield(&e) {
				return
			}
		}
	}
}

// filled reports whether so many entries are as many as requested.
func (f *Filter) filled(n int) bool { return f.Limit > 0 && n >= f.Limit }

// Select returns entries of a history that was read from elsewhere.
func (d Document) Select(f Filter) Document {
	name := f.Service.String()
	out := Document{Total: d.Total, Entries: []Entry{}}
	if f.Service == (model.ServiceName{}) && f.After == 0 {
		out.Hour = d.Hour
	}
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

// syncOf returns which of n syncs, of which at returns each, took a change; -1 where there was none yet, or it is
// forgotten.
func syncOf(n int, at func(i int) *synced, change uint64) int {
	i := sort.Search(n, func(i int) bool { return at(i).to > change })
	if i == n || at(i).from() > change {
		return -1
	}
	return i
}

func (c *change) entry(number uint64) Entry {
	s := c.about
	e := Entry{
		Number: number, At: time.Unix(0, c.at), Kind: c.kind.String(), Verb: c.verb(), Object: s.name,
		Version: c.version, Age: Seconds(c.age.Seconds()), Count: int(c.count), Detail: c.detail,
	}
	if s.namespace != "" {
		e.Object = s.namespace + "/" + s.name
	}
	if s.service != "" {
		e.Service = s.namespace + "/" + s.service
	}
	return e
}

func (c *change) verb() string {
	switch {
	case c.kind == Drift:
		return "found"
	case c.deleted:
		return "deleted"
	case c.known:
		return "changed"
	}
	switch c.kind {
	case Service, EndpointSlice, Route, Grant:
		return "added"
	}
	return "changed" // of the others it is not known
}

// applied describes a sync, to a change that arrived at a moment.
func (s *synced) applied(number uint64, arrived int64) Applied {
	a := Applied{
		Number: number, At: time.Unix(0, s.at), Changes: uint64(s.changes), Ports: int(s.ports),
		Created: int(s.created), Replaced: int(s.replaced), Deleted: int(s.deleted), Commits: int(s.commits),
	}
	if few := s.rare; few != nil {
		a.Failed, a.Deferred, a.Repaired, a.Full, a.Err = few.failed, few.deferred, few.repaired, few.full, few.err
	}
	queued := max(0, time.Duration(s.at-arrived))
	a.Stages = Times{Seconds(queued.Seconds()), Seconds(s.resolve.Seconds()), Seconds(s.compile.Seconds()), Seconds(s.write.Seconds())}
	a.Took = Seconds((queued + s.resolve + s.compile + s.write).Seconds())
	return a
}

// Subject names the object of a change, or says how many there are of kinds that are about many, with what it changed
// in brackets.
func (e *Entry) Subject() string {
	if e.Detail == "" {
		return e.About()
	}
	return strings.TrimSpace(e.About() + " (" + e.Detail + ")")
}

// About names the object of a change, or says how many there are of kinds that are about many.
func (e *Entry) About() string {
	if e.Count > 0 {
		return printable.Count(e.Count, "object")
	}
	return e.Object
}

// Wrote summarizes what the sync of a change did to the data plane, and with how
// many others: "+2 ~1 -3 (with 4 others)".
func (e *Entry) Wrote() string {
	a := e.Sync
	if a == nil {
		return "waiting"
	}
	text := fmt.Sprintf("+%d ~%d -%d", a.Created, a.Replaced, a.Deleted)
	if a.Created+a.Replaced+a.Deleted == 0 {
		text = "nothing"
	}
	if a.Failed > 0 {
		text += fmt.Sprintf(", %d failed", a.Failed)
	}
	if a.Deferred > 0 {
		text += fmt.Sprintf(", %d deferred", a.Deferred)
	}
	if a.Changes > 1 {
		text += " (with " + printable.Count(a.Changes-1, "other") + ")"
	}
	return text
}

// Short is a duration with about three digits; "-" when it is unknown.
func Short(s Seconds) string {
	d := s.Duration()
	switch {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
