// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/sleep"
)

// An answer about 10,000 Services, or an audit, makes megabytes of garbage, which an idle proxy
// would keep for minutes: the next collection comes when there is enough of it. It also pages
// in megabytes of program text. Both are released when idle: pages of the program after each
// question or audit, garbage once questions, audits and changes have stopped. Garbage of
// changes alone is the collector's, which lets it grow to a part of what lives, unless they
// were so many that one more collection adds little to what theirs have cost.

// The pace of releasing memory. A collection takes some 50 ms of CPU time at 10,000 Services, during
// changes. A release of the program takes 5 ms in one system call, which has the kernel count all
// pages (smaps), and afterwards changes find the pages that they need again.
const (
	releasePace  = time.Second      // between two releases of the program
	releaseAfter = 2 * time.Second  // the last question, audit or change
	releaseGap   = 20 * time.Second // between two collections
	releaseWorth = 2 << 20          // bytes allocated since the last one
	releaseTimes = 4                // and, for changes alone, so many times what lives
)

// releaser has memory given back after questions, audits and changes.
type releaser struct {
	noted   chan struct{}
	idle    atomic.Bool // run waits for the first note
	changes atomic.Bool // there were some since run looked
	asked   atomic.Bool // there was a question or an audit since run last decided
	rare    atomic.Bool // parts of the program were used that changes do not need
	text    func()      // gives back pages of the program
	collect func()      // gives back garbage
}

func newReleaser(text, collect func()) *releaser {
	return &releaser{noted: make(chan struct{}, 1), text: text, collect: collect}
}

// around notes a question, and its end.
func (r *releaser) around(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.read()
		defer r.read()
		h.ServeHTTP(w, req)
	})
}

// read notes a question, or an audit that has ended.
func (r *releaser) read() {
	r.asked.Store(true)
	r.rare.Store(true)
	r.note()
}

// changed notes a change. Like read it does not block, and it wakes run for the first of many
// alone: to wake a goroutine costs more than all else here.
func (r *releaser) changed() {
	r.changes.Store(true)
	if r.idle.CompareAndSwap(true, false) {
		r.note()
	}
}

func (r *releaser) note() {
	select {
	case r.noted <- struct{}{}:
	default: // run goes on anyway
	}
}

// run gives memory back until ctx ends.
func (r *releaser) run(ctx context.Context) {
	before, last := allocated(), time.Time{}
	for r.wait(ctx) {
		r.releaseText()
		if allocated()-before < r.worth() {
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
// before ctx ended. With a question every second it waits no longer than releaseGap.
func (r *releaser) wait(ctx context.Context) bool {
	r.idle.Store(true)
	select {
	case <-ctx.Done():
		return false
	case <-r.noted:
	}
	r.idle.Store(false)
	enough := time.After(releaseGap)
	var last time.Time // the last release of the program
	for {
		var due <-chan time.Time
		if r.rare.Load() {
			if left := time.Until(last.Add(releasePace)); left > 0 {
				due = time.After(left)
			} else {
				r.releaseText()
				last = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-r.noted:
		case <-due:
		case <-enough:
			return true
		case <-time.After(releaseAfter):
			if !r.changes.Swap(false) {
				return true
			}
		}
	}
}

// releaseText gives back the pages of the program, if rare ones were used.
func (r *releaser) releaseText() {
	if r.rare.Swap(false) {
		r.text()
	}
}

// worth is how many bytes allocated since the last collection are worth one.
func (r *releaser) worth() uint64 {
	if r.asked.Swap(false) {
		return releaseWorth
	}
	return max(releaseWorth, releaseTimes*heap("/gc/heap/live:bytes"))
}

// allocated is how many bytes were allocated since the start of the process.
func allocated() uint64 { return heap("/gc/heap/allocs:bytes") }

// heap is a figure of runtime/metrics. It stops nothing to find out.
func heap(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// How much garbage, in percent of what lives, is let grow before it is collected. The peak of memory is
// at the end of a start, when all was read and most is compiled: the nearer it is the less garbage there
// is to be. Afterwards a change makes little. While changes come so fast that collections follow one
// another within rushGap, these would take a quarter of all time: then it is Go's own percentage, until
// changes have stopped.
const (
	readPercent  = 40 // until all is read
	writePercent = 15 // and from then until it is programmed
	gcPercent    = 30
	rushPercent  = 100
	rushGap      = 500 * time.Millisecond
)

// setGarbage sets that. What a user has set stands.
func setGarbage(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// collector returns garbage to the system. It may be used by several goroutines.
type collector struct {
	mu    sync.Mutex
	last  time.Time // that garbage was collected; zero after collect, which is no rush
	rush  bool
	after bool // it is told of each collection
}

// collect returns all garbage.
func (c *collector) collect() {
	debug.FreeOSMemory()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.after {
		c.after = true
		c.follow()
	}
	c.last, c.rush = time.Time{}, false
	setGarbage(gcPercent)
}

// follow has collected called after the next collection.
func (c *collector) follow() { runtime.AddCleanup(new([2]uintptr), (*collector).collected, c) }

func (c *collector) collected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	now := time.Now()
	if !c.rush && now.Sub(c.last) < rushGap {
		c.rush = true
		setGarbage(rushPercent)
	}
	c.last = now
}

// progressInterval is how often a slow start logs the condition it waits for.
const progressInterval = 5 * time.Second

// logProgress logs the conditions that a start waits for, until everything is programmed.
func (p *Proxy) logProgress(ctx context.Context) {
	begin := time.Now()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.engine.Programmed():
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			p.log.Info("start not finished", "since", time.Since(begin).Round(time.Second), "waiting", strings.Join(p.health().Reasons, "; "))
		}
	}
}

// releaseStartMemory returns the memory that the start needed to the system, once,
// a few seconds after the first sync: it is several times what the proxy needs
// from then on. It reports whether that came before ctx ended.
func (p *Proxy) releaseStartMemory(ctx context.Context) bool {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for quiet := 0; quiet < 2; {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		if p.Status().Synced {
			quiet++
		}
	}
	p.system.collect()
	p.releaseText()
	return true
}

// releaseText returns the pages of the program to the system: those in use are mapped in again.
func (p *Proxy) releaseText() {
	if err := p.system.releaseText(); err != nil {
		p.log.Debug("releasing memory failed", "err", err)
	}
}
