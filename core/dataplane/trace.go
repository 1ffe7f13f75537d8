// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// Trace reads everything back and sends a packet through it.
func (b *backend[K, V]) Trace(ctx context.Context, ports []*model.Port, p oracle.Packet) (Trace, error) {
	start := time.Now()
	e, ok := b.compiler.(Evaluator[K, V])
	b.mu.Lock()
	host := b.host
	b.mu.Unlock()
	if !ok || host == nil {
		return Trace{}, errUntraceable
	}
	want, _ := Compile(b.compiler, host, ports)
	r, err := b.inspect(ctx, b.path(want, host, p), want)
	if err != nil {
		return Trace{}, err
	}
	t := r.conclude(e, want, host, p)
	if t.Others, err = b.others(ctx); err != nil {
		return Trace{}, err
	}
	t.Took = time.Since(start)
	return t, nil
}

// others lists the rules of other programs, where the driver can.
func (b *backend[K, V]) others(ctx context.Context) ([]string, error) {
	n, ok := b.driver.(OthersLister)
	if !ok {
		return nil, nil
	}
	if err := b.lockReading(ctx); err != nil {
		return nil, err
	}
	defer b.reading.Unlock()
	return n.Others(ctx)
}

// conclude follows a packet through what was found.
func (r *inspection[K, V]) conclude(e Evaluator[K, V], want map[K]V, host *model.Host, p oracle.Packet) Trace {
	t := Trace{Programmed: e.Evaluate(want, host)(p), Objects: r.read}
	run := func() oracle.Outcome { return e.Evaluate(r.found, host)(p) }
	t.Installed = run()
	for _, d := range r.differing {
		if v, there := r.found[d.key]; there && !d.leaves && e.Opaque(d.key, v) {
			t.Opaque = append(t.Opaque, d.Object)
		}
	}
	r.decide(&t, want, run)
	return t
}

// traceRecorded is Trace in a data plane that is as c compiles it, but for what was recorded.
func traceRecorded[K comparable, V any](c Compiler[K, V], host *model.Host, ports []*model.Port, p oracle.Packet, recorded []Difference) (Trace, error) {
	e, ok := c.(Evaluator[K, V])
	if !ok {
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
	t := r.conclude(e, want, host, p)
	t.Opaque = append(t.Opaque, unknown...)
	return t, nil
}
