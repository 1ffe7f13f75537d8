// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"
	"time"
)

// Who is asked since when commits were forgotten, or made while the socket was mute, learns that
// there may be others.
func TestWritersThatAreNotAllAreSaidToBeSo(t *testing.T) {
	start := time.Now().Add(-time.Minute)
	w := &Writers{lost: start} // without a socket
	check := func(what string, since time.Time, writers int, whole bool) {
		t.Helper()
		if found, all := w.Since(since); len(found) != writers || all != whole {
			t.Errorf("%s: %d writers, all: %v; want %d, %v", what, len(found), all, writers, whole)
		}
	}
	check("before the socket was opened", start.Add(-time.Hour), 0, false)
	at := func(i int) time.Time { return start.Add(time.Duration(i) * time.Microsecond) }
	add := func(from, n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := from; i < from+n; i++ {
			w.add(Writer{Name: "nft", PID: i, At: at(i)})
		}
	}
	add(1, maxWriters)
	check("as many as are remembered", start, maxWriters, true)
	add(maxWriters+1, 1)
	check("one more", start, maxWriters, false)
	check("one more, but not since the first", at(1), maxWriters, true)
	w.missed()
	check("while it was mute", at(maxWriters), 1, false)
	check("since then", time.Now().Add(time.Minute), 0, true)
}
