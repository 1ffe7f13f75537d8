// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"net/http"
	"runtime/metrics"
	"time"
)

// An answer about 10,000 Services makes tens of megabytes of garbage, which a proxy at rest,
// that makes nearly none, would keep for minutes: the next collection comes when there
// is enough of it. So what questions have allocated is given back once they are over.

// The pace of that. A collection takes some 50 ms of CPU time at 10,000 Services, during
// changes.
const (
	releaseAfter = 2 * time.Second  // the last question
	releaseGap   = 20 * time.Second // between two collections
	releaseWorth = 2 << 20          // bytes allocated since the last one
)

// releaser has memory given back after questions.
type releaser struct {
	asked   chan struct{} // of one
	release func()
}

func newReleaser(release func()) *releaser {
	return &releaser{asked: make(chan struct{}, 1), release: release}
}

// after notes a question once it is answered.
func (r *releaser) after(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer r.note()
		h.ServeHTTP(w, req)
	})
}

func (r *releaser) note() {
	select {
	case r.asked <- struct{}{}:
	default: // run goes on anyway
	}
}

// run collects after questions until ctx ends.
func (r *releaser) run(ctx context.Context) {
	before, last := allocated(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.asked:
		}
		enough := time.After(releaseGap) // also where somebody asks every second
		for quiet := false; !quiet; {
			select {
			case <-ctx.Done():
				return
			case <-r.asked:
			case <-enough:
				quiet = true
			case <-time.After(max(releaseAfter, time.Until(last.Add(releaseGap)))):
				quiet = true
			}
		}
		if allocated()-before < releaseWorth {
			continue
		}
		r.release()
		before, last = allocated(), time.Now()
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
