// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Implementation returns the objects that affect a packet,
// in the order of their creation: those that implement what policy decides for it.
// The ports are those of the Service that it is for.
func Implementation[K comparable, V any](c Compiler[K, V], host *model.Host, ports []*model.Port, p oracle.Packet) []Object {
	objects, _ := Compile(c, host, ports)
	run := c.Evaluate(objects, host)
	if run == nil {
		return nil
	}
	want := run(p)
	var out []Object
	for _, k := range inOrder(c, ports, host) {
		v := objects[k]
		delete(objects, k)
		if !c.Evaluate(objects, host)(p).Same(want) {
			out = append(out, Object{fmt.Sprint(k), c.Text(k, v)})
		}
		objects[k] = v
	}
	return out
}

// mostTried bounds how many objects are tried for a packet: each try evaluates all of
// them.
const mostTried = 500

// inOrder returns the keys in the order of their creation; where they are too many,
// some of a port's own are left out.
func inOrder[K comparable, V any](c Compiler[K, V], ports []*model.Port, host *model.Host) (keys []K) {
	seen := map[K]struct{}{}
	add := func(k K, _ V) {
		if _, twice := seen[k]; !twice && len(keys) < mostTried {
			seen[k] = struct{}{}
			keys = append(keys, k)
		}
	}
	c.Base(host, add)
	for _, port := range ports {
		c.Port(host, port, add)
	}
	sortKeys(c, keys)
	return keys
}

func (b *backend[K, V]) Implementation(ports []*model.Port, p oracle.Packet) []Object {
	b.mu.Lock()
	host := b.host
	b.mu.Unlock()
	if host == nil {
		return nil
	}
	return Implementation(b.compiler, host, ports, p)
}

var errUntraceable = errors.New("this data plane cannot be traced yet")

// inspection holds the objects read back that may concern one packet.
type inspection[K comparable, V any] struct {
	found     map[K]V
	differing []differing[K]
	read      int
}

// decide finds out which differences change the packet's fate, and puts them first.
func (r *inspection[K, V]) decide(t *Trace, want map[K]V, run func() oracle.Outcome) {
	var rest []Difference
	for i, d := range r.differing {
		v, there := r.found[d.key]
		if w, wanted := want[d.key]; wanted {
			r.found[d.key] = w
		} else {
			delete(r.found, d.key)
		}
		decides := i < mostTried && !run().Same(t.Installed)
		if there {
			r.found[d.key] = v
		} else {
			delete(r.found, d.key)
		}
		switch {
		case decides:
			t.Differences = append(t.Differences, d.Difference)
		case !d.leaves:
			rest = append(rest, d.Difference)
		}
	}
	t.Deciding = len(t.Differences)
	t.Differences = append(t.Differences, rest...)
}

// inspect reads everything back, and reads differences twice: a read during changes may
// show transient ones.
func (b *backend[K, V]) inspect(ctx context.Context, lookups func(map[K]V) []K, want map[K]V) (r inspection[K, V], err error) {
	if r, err = b.inspectOnce(ctx, lookups, want); err != nil || len(r.differing) == 0 {
		return r, err
	}
	again, err := b.inspectOnce(ctx, lookups, want)
	first := map[K]differing[K]{}
	for _, d := range r.differing {
		first[d.key] = d
	}
	again.differing = slices.DeleteFunc(again.differing, func(d differing[K]) bool { return first[d.key].Difference != d.Difference })
	for i := range again.differing {
		d := &again.differing[i]
		d.leaves = d.leaves || first[d.key].leaves // it may be deleted by now
	}
	return again, err
}

// The bounds of a path. A packet that comes along more is traced by reading everything.
const (
	mostLookups = 4096
	mostRounds  = 16
)

// inspectOnce reads once and keeps the objects that are in want or differ from the ledger. With
// lookups it reads those along the path only.
func (b *backend[K, V]) inspectOnce(ctx context.Context, lookups func(map[K]V) []K, want map[K]V) (r inspection[K, V], err error) {
	if err := b.lockReading(ctx); err != nil {
		return r, err
	}
	defer b.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, b.Limits().Read)
	defer cancel()
	read := func(K) bool { return true }
	if lookups != nil {
		r, read, err = b.along(ctx, lookups, want)
	} else {
		r, err = b.readFor(want, func(found func(K, V)) error { return b.driver.Observe(ctx, found) })
		b.incomplete.Store(true) // it has used the driver's notice up
	}
	if err != nil {
		return r, err
	}
	var missing []K
	for k := range want {
		if _, there := r.found[k]; !there && read(k) {
			missing = append(missing, k)
		}
	}
	for _, k := range missing {
		r.differing = append(r.differing, b.difference(k, want[k], true, r.found[k], false))
	}
	r.sort(b.compiler)
	return r, nil
}

func (b *backend[K, V]) readFor(want map[K]V, observe func(found func(K, V)) error) (r inspection[K, V], err error) {
	err = RetryInterrupted(func() error {
		r = inspection[K, V]{found: map[K]V{}}
		return observe(func(k K, v V) { b.see(&r, want, k, v) })
	})
	return r, err
}

// along reads the keys that the packet is looked up by in wanted and in found objects, until
// there are no further keys. Read reports whether a key was read.
func (b *backend[K, V]) along(ctx context.Context, lookups func(map[K]V) []K, want map[K]V) (r inspection[K, V], read func(K) bool, err error) {
	keys, asked := []K{}, map[K]struct{}{}
	more := lookups(want)
	for round := range mostRounds {
		before := len(keys)
		for _, k := range more {
			if _, twice := asked[k]; !twice && len(keys) < 2*mostLookups {
				asked[k] = struct{}{}
				keys = append(keys, k)
			}
		}
		if round > 0 && len(keys) == before {
			break
		}
		r, err = b.readFor(want, func(found func(K, V)) error { return b.path.Observe(ctx, keys, found) })
		if err != nil {
			return r, nil, err
		}
		more = lookups(r.found)
	}
	return r, func(k K) bool {
		_, was := asked[k]
		return was || !b.path.Single(k)
	}, nil
}

func (r *inspection[K, V]) sort(c Compiler[K, V]) {
	slices.SortFunc(r.differing, func(a, b differing[K]) int {
		return cmp.Or(c.Rank(a.key)-c.Rank(b.key), cmp.Compare(a.Object, b.Object))
	})
	r.differing = r.differing[:min(len(r.differing), maxDifferences)]
}

// see records one object that was read. One that is as desired is kept in its
// desired form: some drivers read digests only.
func (b *backend[K, V]) see(r *inspection[K, V], want map[K]V, k K, v V) {
	r.read++
	w, relevant := want[k]
	wanted, leaves := relevant, false
	if !relevant {
		var owners int
		b.mu.Lock()
		w, owners = b.ledger.Wanted(k)
		_, leaves = b.ledger.Installed(k)
		b.mu.Unlock()
		wanted = owners > 0
	}
	if wanted && b.compiler.Equal(w, v) {
		if relevant {
			r.found[k] = w
		}
		return
	}
	if _, again := r.found[k]; !again && len(r.differing) < 2*maxDifferences {
		d := b.difference(k, w, wanted, v, true)
		d.leaves = leaves && !wanted
		r.differing = append(r.differing, d)
	}
	r.found[k] = v
}

// Trace reads back the objects on a packet's path, or everything where a driver has no Path,
// and sends the packet through it.
func (b *backend[K, V]) Trace(ctx context.Context, ports []*model.Port, p oracle.Packet) (Trace, error) {
	start := time.Now()
	b.mu.Lock()
	host := b.host
	b.mu.Unlock()
	if host == nil || b.compiler.Evaluate(nil, host) == nil {
		return Trace{}, errUntraceable
	}
	want, _ := Compile(b.compiler, host, ports)
	var lookups func(map[K]V) []K
	if b.path.Observe != nil {
		lookups = func(objects map[K]V) []K { return b.path.Lookups(objects, host)(p) }
		if len(lookups(want)) > mostLookups {
			lookups = nil
		}
	}
	r, err := b.inspect(ctx, lookups, want)
	if err != nil {
		return Trace{}, err
	}
	t := r.conclude(b.compiler, want, host, p)
	if err := b.lockReading(ctx); err != nil {
		return Trace{}, err
	}
	defer b.reading.Unlock()
	if t.Others, err = b.driver.Others(ctx); err != nil {
		return Trace{}, err
	}
	t.Took = time.Since(start)
	return t, nil
}

// conclude follows a packet through what was found.
func (r *inspection[K, V]) conclude(c Compiler[K, V], want map[K]V, host *model.Host, p oracle.Packet) Trace {
	t := Trace{Programmed: c.Evaluate(want, host)(p), Objects: r.read}
	run := func() oracle.Outcome { return c.Evaluate(r.found, host)(p) }
	t.Installed = run()
	for _, d := range r.differing {
		if v, there := r.found[d.key]; there && !d.leaves && c.Opaque(d.key, v) {
			t.Opaque = append(t.Opaque, d.Object)
		}
	}
	r.decide(&t, want, run)
	return t
}

// traceRecorded is Trace in a data plane that is as c compiles it, but for what was recorded.
func traceRecorded[K comparable, V any](c Compiler[K, V], host *model.Host, ports []*model.Port, p oracle.Packet, recorded []Difference) (Trace, error) {
	if c.Evaluate(nil, host) == nil {
		return Trace{}, errUntraceable
	}
	want, _ := Compile(c, host, ports)
	names := make(map[string]K, len(want))
	for k := range want {
		names[fmt.Sprint(k)] = k
	}
	r := inspection[K, V]{found: maps.Clone(want), read: len(want)}
	var unknown []string
	for _, d := range recorded {
		k, v, err := restore(c, d.Record)
		switch named, ok := names[d.Object]; {
		case err != nil && d.State == Missing && ok:
			k = named
		case err != nil && d.State != Missing:
			unknown = append(unknown, d.Object)
			continue
		}
		if d.State == Missing {
			delete(r.found, k)
		} else {
			r.found[k] = v
		}
		r.differing = append(r.differing, differing[K]{key: k, Difference: d})
	}
	r.sort(c)
	t := r.conclude(c, want, host, p)
	t.Opaque = append(t.Opaque, unknown...)
	return t, nil
}

// maxDifferences is how many are kept of one reading, and named of one trace.
const maxDifferences = 1000

// noteDrift keeps what an audit has found to differ twice. The caller holds the lock.
func (b *backend[K, V]) noteDrift(suspects map[K]*model.PortID, have map[K]V) {
	for k, owner := range suspects {
		if len(b.drifted) == maxDifferences {
			return
		}
		v, there := have[k]
		want, owners := b.ledger.Wanted(k)
		if owners > 0 && there && b.compiler.Equal(want, v) { // a planned write, not drift
			continue
		}
		d := b.difference(k, want, owners > 0, v, there)
		if owner != nil {
			d.Owner = *owner
		}
		if !there {
			v = want
		}
		d.Record = Record(b.compiler, k, v)
		b.drifted = append(b.drifted, d.Difference)
	}
}

func (b *backend[K, V]) Drifted() (found []Difference) {
	b.mu.Lock()
	defer b.mu.Unlock()
	found, b.drifted = b.drifted, nil
	return found
}

// Preview compiles both sides of each delta. An object that other ports need too is
// not deleted.
func (b *backend[K, V]) Preview(deltas []model.Delta) (changes []Change) {
	b.mu.Lock()
	host := b.host
	b.mu.Unlock()
	if host == nil {
		return nil
	}
	old, now := map[K]V{}, map[K]V{}
	owners, releases := map[K]model.PortID{}, map[K]int{}
	for _, d := range deltas {
		if d.Old != nil {
			b.compiler.Port(host, d.Old, func(k K, v V) {
				old[k], owners[k] = v, d.ID()
				releases[k]++
			})
		}
		if d.New != nil {
			b.compiler.Port(host, d.New, func(k K, v V) { now[k], owners[k] = v, d.ID() })
		}
	}
	keys := slices.Collect(maps.Keys(owners))
	sortKeys(b.compiler, keys)
	for _, k := range keys {
		if c, ok := b.previewOne(k, old, now, releases[k]); ok {
			c.Owner = owners[k]
			changes = append(changes, c)
		}
	}
	return changes
}

// previewOne reports what becomes of one object that ports release or need.
func (b *backend[K, V]) previewOne(k K, old, now map[K]V, released int) (c Change, changes bool) {
	b.mu.Lock()
	have, holders := b.ledger.Wanted(k)
	b.mu.Unlock()
	was, had := old[k]
	v, needed := now[k]
	c.Object = fmt.Sprint(k)
	switch {
	case needed && holders == 0 && !had:
		c.Verb, c.New = ledger.Create, b.compiler.Text(k, v)
	case needed && holders > 0 && !b.compiler.Equal(have, v):
		c.Verb, c.Old, c.New = ledger.Replace, b.compiler.Text(k, have), b.compiler.Text(k, v)
	case !needed && had && holders <= released:
		c.Verb, c.Old = ledger.Delete, b.compiler.Text(k, was)
	default:
		return c, false
	}
	return c, true
}

// Record spells an object for Difference.Record.
func Record[K comparable, V any](c Compiler[K, V], k K, v V) string {
	text, err := json.Marshal(struct {
		Key   K
		Value V
	}{k, v})
	if err != nil {
		return ""
	}
	again, value, err := restore(c, string(text))
	if err != nil || again != k || !c.Equal(value, v) {
		return ""
	}
	return string(text)
}

// restore is the reverse of Record.
func restore[K comparable, V any](c Compiler[K, V], text string) (k K, v V, err error) {
	parts := struct {
		Key   json.RawMessage
		Value *V
	}{Value: &v}
	if err = json.Unmarshal([]byte(text), &parts); err != nil {
		return k, v, err
	}
	k, err = c.DecodeKey(parts.Key)
	return k, v, err
}

type differing[K comparable] struct {
	key    K
	leaves bool // unexpected, and known to be there: it is on its way out
	Difference
}

// difference describes a key that is not as wanted.
func (b *backend[K, V]) difference(k K, want V, wanted bool, have V, there bool) differing[K] {
	d := differing[K]{key: k, Difference: Difference{Object: fmt.Sprint(k), State: Differs}}
	if wanted {
		d.Wanted = b.compiler.Text(k, want)
	} else {
		d.State = Unexpected
	}
	if there {
		d.Found = b.compiler.Text(k, have)
	} else {
		d.State = Missing
	}
	return d
}

func sortKeys[K comparable, V any](c Compiler[K, V], keys []K) {
	names := make(map[K]string, len(keys))
	for _, k := range keys {
		names[k] = fmt.Sprint(k)
	}
	slices.SortFunc(keys, func(a, b K) int { return cmp.Or(c.Rank(a)-c.Rank(b), cmp.Compare(names[a], names[b])) })
}
