// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Implementation returns the objects without which a packet would fare otherwise,
// in the order of their creation: those that implement what policy decides for it.
// The ports are those of the Service that it is for.
func Implementation[K comparable, V any](c Compiler[K, V], host *model.Host, ports []*model.Port, p oracle.Packet) []Object {
	e, ok := c.(Evaluator[K, V])
	if !ok {
		return nil
	}
	objects, _ := Compile(c, host, ports)
	want := e.Evaluate(objects, host)(p)
	var out []Object
	for _, k := range inOrder(c, objects, ports, host) {
		v := objects[k]
		delete(objects, k)
		if !e.Evaluate(objects, host)(p).Same(want) {
			out = append(out, Object{fmt.Sprint(k), e.Text(k, v)})
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
func inOrder[K comparable, V any](c Compiler[K, V], objects map[K]V, ports []*model.Port, host *model.Host) (keys []K) {
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
func (b *backend[K, V]) inspect(ctx context.Context, of path[K, V], want map[K]V) (r inspection[K, V], err error) {
	if r, err = b.inspectOnce(ctx, of, want); err != nil || len(r.differing) == 0 {
		return r, err
	}
	again, err := b.inspectOnce(ctx, of, want)
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

// path selects the objects to read: those one packet may traverse, where data plane and
// compiler support that, else everything.
type path[K comparable, V any] struct {
	from    Selective[K, V] // nil for everything
	lookups func(objects map[K]V) []K
}

// The bounds of a path. A packet that comes along more is traced by reading everything.
const (
	mostLookups = 4096
	mostRounds  = 16
)

func (b *backend[K, V]) path(want map[K]V, host *model.Host, p oracle.Packet) (of path[K, V]) {
	f, known := b.compiler.(Finder[K, V])
	from, selective := b.driver.(Selective[K, V])
	if !known || !selective {
		return of
	}
	of.lookups = func(objects map[K]V) []K { return f.Lookups(objects, host)(p) }
	if len(of.lookups(want)) <= mostLookups {
		of.from = from
	}
	return of
}

// inspectOnce reads once and keeps the objects that are in want or differ from the ledger.
func (b *backend[K, V]) inspectOnce(ctx context.Context, of path[K, V], want map[K]V) (r inspection[K, V], err error) {
	if err := b.lockReading(ctx); err != nil {
		return r, err
	}
	defer b.reading.Unlock()
	ctx, cancel := context.WithTimeout(ctx, b.ReadLimit())
	defer cancel()
	read := func(K) bool { return true }
	if of.from != nil {
		r, read, err = b.along(ctx, of, want)
	} else {
		r, err = b.readFor(want, func(found func(K, V)) error { return b.driver.Observe(ctx, found) })
		b.incomplete.Store(true) // it has used the Sentinel's notice up
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
func (b *backend[K, V]) along(ctx context.Context, of path[K, V], want map[K]V) (r inspection[K, V], read func(K) bool, err error) {
	keys, asked := []K{}, map[K]struct{}{}
	more := of.lookups(want)
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
		r, err = b.readFor(want, func(found func(K, V)) error { return of.from.ObserveSome(ctx, keys, found) })
		if err != nil {
			return r, nil, err
		}
		more = of.lookups(r.found)
	}
	return r, func(k K) bool {
		_, was := asked[k]
		return was || !of.from.One(k)
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
