// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// Memory is given back once questions are over, not often, and not where they took none.
func TestMemoryIsReleasedAfterQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		collected := 0
		r := newReleaser(func() { collected++ })
		done := make(chan struct{})
		go func() { defer close(done); r.run(ctx) }()
		ask := func(bytes int) {
			r.after(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { garbage = make([]byte, bytes) })).
				ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/query/explain", nil))
		}
		for range 10 { // each second: no collection between them
			ask(10 << 20)
			time.Sleep(time.Second)
		}
		if collected != 0 {
			t.Errorf("%d collections while questions come", collected)
		}
		time.Sleep(3 * time.Second)
		if collected != 1 {
			t.Fatalf("%d collections after questions, want 1", collected)
		}
		ask(10 << 20)
		if time.Sleep(5 * time.Second); collected != 1 {
			t.Error("collected again soon after")
		}
		if time.Sleep(releaseGap); collected != 2 {
			t.Errorf("%d collections after the last question, want 2", collected)
		}
		ask(1000)
		if time.Sleep(time.Minute); collected != 2 {
			t.Error("collected for nothing")
		}
		stop()
		<-done
	})
}

var garbage []byte
