// SPDX-License-Identifier: Apache-2.0

// Package history records the last changes: what was received, what it rewrote, how long
// each stage took, and what failed.
//
//	engine ──Arrived──▶ ring of Change ┐
//	       ──Synced───▶ ring of Sync   ┼──Find──▶ Document ──▶ tandem history, snapshot, /ui
//	              └───▶ the last hour  ┘
//
// Both rings are bounded, in number and in bytes, and grow in blocks, so that an idle
// proxy pays for none of it. An append allocates a block in 500, until the ring is full;
// the names of an object that was not among the last ones; and what a sync rarely has, such
// as an error. Else it allocates nothing.
package history

import (
	"math"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
)

// Most is how many changes, and how many syncs, are remembered. Of quiet namespaces there may be some older ones.
const Most = 10_000

// The bounds of texts: longer ones are cut.
const (
	maxName   = 253 // of the API for names of objects
	maxDetail = 300
)

// Recorder is the history of a running proxy. It is safe for concurrent use: one
// goroutine writes and never waits for a reader longer than it takes to copy a
// block.
type Recorder struct {
	mu      sync.Mutex
	changes ring[change]
	syncs   ring[synced]
	hour    hour
	kept    []kept // the last that went from changes and are of a namespace with few; in a circle
	keptAt  int    // the place of the oldest

	usage func() Usage // nil where that is not known

	recent map[subject]*subject // of the writing goroutine
	each   map[string]*tally    // what namespaces have in changes
}

// A namespace with fewer than fewChanges of the changes keeps some longer, so that one whose objects change
// without an end does not displace what others have: the last mostKept of all such.
const (
	fewChanges = Most / 8
	mostKept   = Most / 10
)

// kept is a change that is not in the ring any more, with its sync.
type kept struct {
	change
	number     uint64
	sync       synced
	syncNumber uint64
}

// tally counts the changes of a namespace.
type tally struct{ changes int }

// Arrived records a change and numbers it.
func (r *Recorder) Arrived(c Change) {
	about := r.subject(subject{printable.CutBytes(c.Namespace, maxName), printable.CutBytes(c.Name, maxName), printable.CutBytes(c.Service, maxName), nil})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changes.count >= Most {
		r.retire(r.changes.oldest())
	}
	if about.of.changes == 0 {
		about.of = r.tally(about.namespace)
	}
	about.of.changes++
	r.changes.append(change{at: c.At, about: about, detail: printable.CutBytes(c.Detail, maxDetail), version: c.Version, age: c.Age, count: short(c.Count), kind: c.Kind, deleted: c.Deleted, known: c.Known})
}

// Measure has the use of CPU and memory recorded, which usage reads. It comes before all else.
func (r *Recorder) Measure(usage func() Usage) { r.usage = usage }

// retire is called before a change is overwritten.
func (r *Recorder) retire(number uint64) {
	c := *r.changes.get(number)
	of := c.about.of
	if of.changes--; of.changes == 0 {
		delete(r.each, c.about.namespace)
	}
	if of.changes >= fewChanges {
		return
	}
	oldest := r.syncs.oldest()
	i := syncOf(int(r.syncs.next()-oldest), func(i int) *synced { return r.syncs.get(oldest + uint64(i)) }, number)
	if i < 0 {
		return // what has become of it is not known
	}
	at := oldest + uint64(i)
	k := kept{c, number, *r.syncs.get(at), at}
	if len(r.kept) < mostKept {
		r.kept = append(r.kept, k)
		return
	}
	r.kept[r.keptAt] = k
	r.keptAt = (r.keptAt + 1) % mostKept
}

// subject returns the equal one that a recent change has, if any: each version of an object brings its
// names in new strings, and the history would keep them all.
func (r *Recorder) subject(s subject) *subject {
	known := r.recent[s]
	if known == nil {
		if len(r.recent) >= mostRecent {
			clear(r.recent)
		}
		if r.recent == nil {
			r.recent = map[subject]*subject{}
		}
		known = new(subject)
		*known = s
		known.of = r.tally(s.namespace)
		r.recent[s] = known
	}
	return known
}

// tally returns the count of a namespace.
func (r *Recorder) tally(namespace string) *tally {
	if r.each == nil {
		r.each = map[string]*tally{}
	}
	if r.each[namespace] == nil {
		r.each[namespace] = new(tally)
	}
	return r.each[namespace]
}

// mostRecent bounds how many subjects are remembered for that.
const mostRecent = 1000

// Synced records a sync of all changes that arrived since the one before.
func (r *Recorder) Synced(s Sync) {
	kept := synced{
		at: s.At, ports: short(s.Ports), created: short(s.Created), replaced: short(s.Replaced), deleted: short(s.Deleted), commits: short(s.Commits),
		resolve: s.Stages[Resolve], compile: s.Stages[Compile], write: s.Stages[Write],
	}
	if few := (rare{s.Failed, s.Deferred, s.Repaired, s.Full, printable.CutBytes(s.Err, maxDetail)}); few != (rare{}) {
		kept.rare = new(rare)
		*kept.rare = few
	}
	work := s.Stages[Resolve] + s.Stages[Compile] + s.Stages[Write]
	end := s.At + int64(work)
	r.measure(end, false)
	r.mu.Lock()
	defer r.mu.Unlock()
	from := uint64(1)
	if last := r.syncs.newest(); last != nil {
		from = last.to
	}
	kept.to = r.changes.next()
	kept.changes = short(int(kept.to - from))
	r.syncs.append(kept)
	for n := max(from, r.changes.oldest()); n < kept.to; n++ {
		r.hour.applied(end, work+max(0, time.Duration(s.At-r.changes.get(n).at)))
	}
}

// measure reads what the process has used, unless that is not known, or was read in the same minute and need not be
// of now.
func (r *Recorder) measure(at int64, now bool) {
	if r.usage == nil {
		return
	}
	r.mu.Lock()
	read := r.hour.read
	r.mu.Unlock()
	if !now && read == number(at) {
		return
	}
	u := r.usage() // reads files, so without the lock
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hour.used(at, u)
}

// short returns a count in 32 bits, the largest number where it has more.
func short(n int) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// Waiting reports whether changes have arrived since the last sync.
func (r *Recorder) Waiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.syncs.newest()
	return r.changes.count > 0 && (last == nil || last.to < r.changes.next())
}

// blockLength is how many records are allocated, and copied for a reader, at a time.
const blockLength = 500

// ring holds the last Most records, the one of number n in place (n-1) % Most.
type ring[T any] struct {
	blocks [Most / blockLength]*[blockLength]T
	count  uint64 // appended so far
}

// next is the number of the next record.
func (r *ring[T]) next() uint64 { return r.count + 1 }

func (r *ring[T]) append(v T) {
	place := r.count % Most
	block := &r.blocks[place/blockLength]
	if *block == nil {
		*block = new([blockLength]T)
	}
	(*block)[place%blockLength] = v
	r.count++
}

// newest is the newest record; nil before the first.
func (r *ring[T]) newest() *T {
	if r.count == 0 {
		return nil
	}
	return r.get(r.count)
}

// get is the record of a number that is still there.
func (r *ring[T]) get(number uint64) *T {
	place := (number - 1) % Most
	return &r.blocks[place/blockLength][place%blockLength]
}

// oldest is the number of the oldest record that is there, or of the next one.
func (r *ring[T]) oldest() uint64 {
	if r.count > Most {
		return r.count - Most + 1
	}
	return 1
}

// last is the number of the first of the last so many records that are there.
func (r *ring[T]) last(most int) uint64 {
	return max(r.oldest(), r.next()-min(uint64(most), r.count))
}

// copyFrom copies the records from a number on, oldest first, and takes the lock for one block
// at a time. Records overwritten meanwhile are left out. First is the number of the first one.
func copyFrom[T any](mu *sync.Mutex, r *ring[T], from uint64) (all []T, first uint64) {
	mu.Lock()
	end := r.next()
	first = max(r.oldest(), from)
	mu.Unlock()
	all = make([]T, 0, end-first)
	for at := first; at < end; {
		mu.Lock()
		if oldest := min(r.oldest(), end); at < oldest {
			all, first, at = all[:0], oldest, oldest
		}
		for n := 0; n < blockLength && at < end; n++ {
			all = append(all, *r.get(at))
			at++
		}
		mu.Unlock()
	}
	return all, first
}

// Kind is what changed.
type Kind uint8

const (
	Service Kind = iota
	EndpointSlice
	Node
	ServiceCIDR
	Route         // of the Gateway API
	Grant         // likewise
	Machine       // addresses of this machine, or addresses of the API server
	Configuration // reloaded
	InitialList   // everything that the source knew when it first was complete
	Mode          // another one is in use
	Drift         // objects of the data plane were found changed by others
	kinds
)

// String returns the kind as it is shown, also in JSON.
func (k Kind) String() string {
	if k >= kinds {
		return "Unknown"
	}
	return [kinds]string{"Service", "EndpointSlice", "Node", "ServiceCIDR", "Route", "ReferenceGrant", "Machine", "Configuration", "InitialList", "Mode", "Drift"}[k]
}

// Change is one change of what the engine works with. It holds no more than its
// own names: the objects are not kept.
type Change struct {
	At      int64 // arrival, in nanoseconds since the epoch
	Kind    Kind
	Deleted bool
	Known   bool // an earlier version of the object was known

	Namespace, Name string // of the object; empty where there is none
	Service         string // that it belongs to, in Namespace; empty for none
	Version         uint64 // resourceVersion; 0 when unknown
	// Age is the time from the change in the cluster until it arrived, as far as an
	// object records it: EndpointSlices do, and Services when they are created. 0 when
	// unknown.
	Age    time.Duration
	Count  int    // objects, of kinds that are about many
	Detail string // what differs from the version before (ServiceChange, SliceChange), or what else there is to say
}

// Sync describes one sync of the engine: the changes it applied together, what it rewrote, how long
// each stage took, and what failed.
type Sync struct {
	At int64 // its start, in nanoseconds since the epoch

	Stages [Stages]time.Duration
	Ports  int // Service ports that came out differently

	Created, Replaced, Deleted int // objects of the data plane
	Commits                    int // transactions
	Failed, Deferred           int // objects
	Repaired                   int // objects that others had changed
	Full                       bool
	Err                        string
}

// Stage is a part of the way of a change.
type Stage uint8

// The stages, in their order. A sync has one time for all its changes.
const (
	Queue   Stage = iota // from the arrival of the oldest change to the start of the sync
	Resolve              // what Services mean to this node
	Compile              // the objects of the data plane
	Write                // comparing and writing them
	Stages
)

// String returns the stage as metrics and JSON have it.
func (s Stage) String() string { return [Stages]string{"queue", "resolve", "compile", "write"}[s] }

// concerns reports whether a change belongs to a Service, or is the object of that name.
func (s *subject) concerns(n model.ServiceName) bool {
	return s.namespace == n.Namespace && (s.service == n.Name || s.name == n.Name)
}

// subject is what a change is about. Many changes share one.
type subject struct {
	namespace, name, service string
	of                       *tally // of the namespace; nil in a key
}

// change is a Change as it is kept: 56 bytes instead of 120.
type change struct {
	at             int64
	about          *subject
	detail         string
	version        uint64
	age            time.Duration
	count          uint32
	kind           Kind
	deleted, known bool
}

// synced is a Sync as it is kept: 80 bytes instead of 136.
type synced struct {
	at                                         int64
	to                                         uint64 // the number of the first change that came later
	changes                                    uint32 // before that, that it applied
	ports, created, replaced, deleted, commits uint32
	resolve, compile, write                    time.Duration
	rare                                       *rare // nil for most
}

// rare is what few syncs have.
type rare struct {
	failed, deferred, repaired int
	full                       bool
	err                        string
}

// from is the number of the first change that it applied.
func (s *synced) from() uint64 { return s.to - uint64(s.changes) }

// failed reports whether something was not done.
func (s *synced) failed() bool { return s.rare != nil && (s.rare.failed > 0 || s.rare.err != "") }
