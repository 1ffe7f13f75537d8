// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Memory is given back: that of the program with each question and after it, but not more
// often than its pace; garbage once questions are over, not often, and not where there is
// little.
func TestMemoryIsReleasedAfterQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var text, collected atomic.Int32
		r := newReleaser(func() { text.Add(1) }, func() { collected.Add(1) })
		done := make(chan struct{})
		go func() { defer close(done); r.run(ctx) }()
		ask := func(bytes int) {
			r.around(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { garbage = make([]byte, bytes) })).
				ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/query/explain", nil))
		}
		for range 10 { // each second: no collection between them
			ask(10 << 20)
			time.Sleep(time.Second)
		}
		if collected.Load() != 0 || text.Load() < 10 || text.Load() > 20 {
			t.Errorf("%d collections while questions come, the program's pages were released %d times", collected.Load(), text.Load())
		}
		time.Sleep(releasePace / 20) // no release is due at the very moment of a look
		before := text.Load()
		for range 150 {
			ask(1)
			time.Sleep(releasePace / 100)
		}
		if n := text.Load() - before; n < 1 || n > 2 {
			t.Errorf("the program's pages were released %d times in the time of one and a half", n)
		}
		time.Sleep(3 * time.Second)
		if collected.Load() != 1 {
			t.Fatalf("%d collections after questions, want 1", collected.Load())
		}
		ask(10 << 20)
		if time.Sleep(5 * time.Second); collected.Load() != 1 {
			t.Error("collected again soon after")
		}
		if time.Sleep(releaseGap); collected.Load() != 2 {
			t.Errorf("%d collections after the last question, want 2", collected.Load())
		}
		before = text.Load()
		r.read() // an audit
		if time.Sleep(time.Minute); collected.Load() != 2 || text.Load() != before+1 {
			t.Errorf("collected %d times for nothing, the program's pages were released %d times", collected.Load()-2, text.Load()-before)
		}
		garbage = make([]byte, 10<<20)
		runtime.GC() // it lives: changes are few beside it, whatever else the process has
		for range 100 {
			r.changed()
			time.Sleep(10 * time.Millisecond)
		}
		if time.Sleep(time.Minute); collected.Load() != 2 || text.Load() != before+1 {
			t.Errorf("after few changes: collected %d times, the program's pages were released %d times: that costs more than they", collected.Load()-2, text.Load()-before-1)
		}
		for range 100 { // many: a collection adds little to those that they needed
			garbage = make([]byte, 10<<20)
		}
		r.changed()
		if time.Sleep(time.Minute); collected.Load() != 3 || text.Load() != before+2 {
			t.Errorf("after many changes: collected %d times, the program's pages were released %d times, want once each", collected.Load()-2, text.Load()-before-1)
		}
		r.changed()
		if time.Sleep(time.Minute); collected.Load() != 3 || text.Load() != before+2 {
			t.Error("memory is released after a small change")
		}
		collected.Store(2)
		for range 60 { // a client that asks each second, permanently
			ask(10 << 20)
			time.Sleep(time.Second)
		}
		if n := collected.Load() - 2; n < 2 || n > 3 {
			t.Errorf("%d collections in a minute of questions", n)
		}
		stop()
		<-done
	})
}

var garbage []byte

// While collections follow one another as much as lives may be garbage; once all was collected it is a third again,
// and a single collection changes nothing.
func TestGarbageOfARush(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	percent := func() uint64 { return heap("/gc/gogc:percent") }
	// becomes collects until so much may be garbage.
	becomes := func(want uint64) {
		t.Helper()
		for begin := time.Now(); percent() != want; time.Sleep(time.Millisecond) {
			if time.Since(begin) > 20*time.Second {
				t.Fatalf("%d percent, want %d", percent(), want)
			}
			runtime.GC()
		}
	}
	var c collector
	for range 2 {
		if c.collect(); percent() != gcPercent {
			t.Fatalf("%d percent after all was collected", percent())
		}
		becomes(rushPercent)
	}
	c.collect()
	for range 3 {
		time.Sleep(rushGap + rushGap/10)
		runtime.GC()
	}
	if time.Sleep(rushGap / 10); percent() != gcPercent {
		t.Errorf("%d percent after collections that had time", percent())
	}
	t.Setenv("GOGC", "70")
	debug.SetGCPercent(70)
	if c.collect(); percent() != 70 {
		t.Errorf("%d percent, where the user wants 70", percent())
	}
}
