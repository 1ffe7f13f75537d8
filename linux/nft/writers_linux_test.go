// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// Since a time from which commits were forgotten there may be others.
func TestWritersThatAreNotAllAreSaidToBeSo(t *testing.T) {
	start := time.Now().Add(-time.Minute)
	w := &Writers{lost: start} // without a socket
	check := func(what string, since time.Time, writers int, whole bool) {
		t.Helper()
		if found := w.Since(since); len(found.Writers) != writers || found.Incomplete == whole {
			t.Errorf("%s: %d writers, all: %v; want %d, %v", what, len(found.Writers), !found.Incomplete, writers, whole)
		}
	}
	check("before notices were lost", start.Add(-time.Hour), 0, false)
	at := func(i int) time.Time { return start.Add(time.Duration(i) * time.Microsecond) }
	add := func(from, n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := from; i < from+n; i++ {
			w.add(dataplane.Writer{Name: "nft", PID: i, At: at(i)})
		}
	}
	add(1, maxWriters)
	check("as many as are remembered", start, maxWriters, true)
	add(maxWriters+1, 1)
	check("one more", start, maxWriters, false)
	check("one more, but not since the first", at(1), maxWriters, true)
	check("since then", time.Now().Add(time.Minute), 0, true)
}
