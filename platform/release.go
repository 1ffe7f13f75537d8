// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"net/http"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/sleep"
)

// An answer about 10,000 Services, or an audit, makes megabytes of garbage, which a proxy
// at rest, that makes nearly none, would keep for minutes: the next collection comes when
// there is enough of it. And it needs megabytes of the program that nothing else does. So
// both are given back once questions and audits are over, and the garbage of changes is once
// no more come.

// The pace of that. A collection takes some 50 ms of CPU time at 10,000 Services, during
// changes.
const (
	releaseAfter = 2 * time.Second  // the last question, audit or change
	releaseGap   = 20 * time.Second // between two collections
	releaseWorth = 2 << 20          // bytes allocated since the last one
)

// releaser has memory given back after questions, audits and changes.
type releaser struct {
	noted   chan struct{}
	rare    atomic.Bool // parts of the program were used that changes do not need
	text    func()      // gives back pages of the program
	collect func()      // gives back garbage
}

func newReleaser(text, collect func()) *releaser {
	return &releaser{noted: make(chan struct{}, 1), text: text, collect: collect}
}

// after notes a question once it is answered.
func (r *releaser) after(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer r.read()
		h.ServeHTTP(w, req)
	})
}

// read notes the end of a question or an audit.
func (r *releaser) read() {
	r.rare.Store(true)
	r.changed()
}

// changed notes a change. Like read it does not block.
func (r *releaser) changed() {
	select {
	case r.noted <- struct{}{}:
	default: // run goes on anyway
	}
}

// run gives memory back until ctx ends.
func (r *releaser) run(ctx context.Context) {
	before, last := allocated(), time.Time{}
	for r.wait(ctx) {
		if r.rare.Swap(false) {
			r.text()
		}
		if allocated()-before < releaseWorth {
			continue
		}
		if !sleep.For(ctx, time.Until(last.Add(releaseGap))) {
			return
		}
		r.collect()
		r.text() // for what the collection needed
		before, last = allocated(), time.Now()
	}
}

// wait waits until something was noted and nothing more is, and reports whether that came
// before ctx ended. Where somebody asks every second it waits no longer than releaseGap.
func (r *releaser) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-r.noted:
	}
	enough := time.After(releaseGap)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-r.noted:
		case <-enough:
			return true
		case <-time.After(releaseAfter):
			return true
		}
	}
}

// allocated is how many bytes were allocated since the start of the process. It stops
// nothing to find out.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
