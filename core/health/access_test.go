// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
)

// office is an API server that reviews tokens.
type office struct {
	mu     sync.Mutex
	grants map[string]health.Grant
	asked  int
	hold   chan struct{} // answers wait for it, unless it is nil
	err    error
}

func (o *office) review(ctx context.Context, token, path string) (health.Grant, error) {
	o.mu.Lock()
	o.asked++
	o.mu.Unlock()
	if o.hold != nil {
		select {
		case <-o.hold:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if path != "/status" {
		return 0, fmt.Errorf("asked about %s", path)
	}
	return o.grants[token], o.err
}

// from asks for a page from an address with headers.
func from(pages http.Handler, client, path string, header ...string) int {
	req := httptest.NewRequest("GET", path, nil)
	req.Host, req.RemoteAddr = "api.cluster.example:6443", client
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	pages.ServeHTTP(w, req)
	return w.Code
}

// The status names every Service and endpoint of a cluster: other hosts and pods get it with a
// token whose user may read it, and not at all where no API server can tell.
func TestStatusIsForReadersWithTheRight(t *testing.T) {
	o := &office{grants: map[string]health.Grant{"good": health.Granted, "weak": health.Forbidden}}
	s := sources()
	s.Review = o.review
	pages := health.Pages(s)
	for _, c := range []struct {
		client string
		header []string
		code   int
	}{
		{"10.244.1.6:4000", nil, 401},
		{"10.244.1.6:4000", []string{"Authorization", "Bearer good"}, 200},
		{"10.244.1.6:4000", []string{health.TokenHeader, "good"}, 200},
		{"10.244.1.6:4000", []string{"Authorization", "Bearer of the API server", health.TokenHeader, "good"}, 200},
		{"10.244.1.6:4000", []string{"Authorization", "Basic good"}, 401},
		{"10.244.1.6:4000", []string{"Authorization", "Bearer bad"}, 401},
		{"10.244.1.6:4000", []string{"Authorization", "Bearer weak"}, 403},
		{"[2001:db8::6]:4000", []string{"Authorization", "Bearer "}, 401},
		{"127.0.0.1:4000", nil, 403}, // by the name of another machine
	} {
		if code := from(pages, c.client, "/status", c.header...); code != c.code {
			t.Errorf("%s with %q: %d, want %d", c.client, c.header, code, c.code)
		}
	}
	if code := from(pages, "10.244.1.6:4000", "/metrics"); code != 200 {
		t.Errorf("/metrics: %d", code)
	}
	s.Review = nil
	if code := from(health.Pages(s), "10.244.1.6:4000", "/status", "Authorization", "Bearer good"); code != 403 {
		t.Errorf("without an API server: %d", code)
	}
	o.err = errors.New("away")
	s.Review = o.review
	if code := from(health.Pages(s), "10.244.1.6:4000", "/status", "Authorization", "Bearer good"); code != 503 {
		t.Errorf("while the API server is away: %d", code)
	}
}

// A token is reviewed once a minute, and what it was granted is not kept for longer.
func TestGrantsAreKeptForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{grants: map[string]health.Grant{"good": health.Granted}}
		s := sources()
		s.Review = o.review
		pages := health.Pages(s)
		for range 100 {
			if code := from(pages, "10.244.1.6:4000", "/status", health.TokenHeader, "good"); code != 200 {
				t.Fatal(code)
			}
			time.Sleep(time.Second)
		}
		if o.asked != 2 {
			t.Errorf("%d reviews in 100 s", o.asked)
		}
		o.grants["good"] = health.Unauthenticated
		time.Sleep(time.Minute)
		if code := from(pages, "10.244.1.6:4000", "/status", health.TokenHeader, "good"); code != 401 {
			t.Errorf("after it was taken back: %d", code)
		}
		for i := range 1000 { // and the room for them is bounded
			token := fmt.Sprint(i)
			o.grants[token] = health.Granted
			from(pages, "10.244.1.6:4000", "/status", health.TokenHeader, token)
		}
		if before := o.asked; from(pages, "10.244.1.6:4000", "/status", health.TokenHeader, "1") != 200 || o.asked != before+1 {
			t.Error("the first of 1,000 tokens is still known")
		}
		time.Sleep(time.Minute) // for the shared documents to be dropped
	})
}

// An address that floods with tokens has one review at a time: others have theirs.
func TestReviewsAreSharedByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &office{grants: map[string]health.Grant{"good": health.Granted}, hold: make(chan struct{})}
		s := sources()
		s.Review = o.review
		pages := health.Pages(s)
		codes := make(chan int, 100)
		for i := range 100 {
			go func() { codes <- from(pages, "10.244.1.6:4000", "/status", health.TokenHeader, fmt.Sprint(i)) }()
		}
		synctest.Wait()
		for range 99 {
			if code := <-codes; code != 429 {
				t.Fatalf("one of many: %d", code)
			}
		}
		friend := make(chan int)
		go func() { friend <- from(pages, "192.0.2.1:4000", "/status", health.TokenHeader, "good") }()
		synctest.Wait()
		close(o.hold)
		if code := <-friend; code != 200 {
			t.Errorf("another address: %d", code)
		}
		if code := <-codes; code != 401 {
			t.Errorf("the first of the flood: %d", code)
		}
		if o.asked != 2 {
			t.Errorf("%d reviews", o.asked)
		}
		time.Sleep(time.Minute)
	})
}

// What root asks at the control socket others ask with a token whose user may: also on this machine, whose users have
// no right to it.
func TestQueriesAreForTokensWithTheRight(t *testing.T) {
	s := sources()
	s.Review = func(_ context.Context, token, path string) (health.Grant, error) {
		if path != "/query" {
			return 0, fmt.Errorf("asked about %s", path)
		}
		return map[string]health.Grant{"good": health.Granted, "weak": health.Forbidden}[token], nil
	}
	s.Query = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	pages := health.Pages(s)
	for _, client := range []string{"10.244.1.6:4000", "127.0.0.1:4000", "[::1]:4000"} {
		for token, want := range map[string]int{"": 401, "bad": 401, "weak": 403, "good": 200} {
			if code := from(pages, client, "/query/services", health.TokenHeader, token); code != want {
				t.Errorf("%s with %q: %d, want %d", client, token, code, want)
			}
		}
	}
	s.Review = nil
	if code := from(health.Pages(s), "127.0.0.1:4000", "/query/services", health.TokenHeader, "good"); code != 403 {
		t.Errorf("without an API server: %d", code)
	}
	s.Query = nil
	if code := from(health.Pages(s), "127.0.0.1:4000", "/query/services"); code != 404 {
		t.Errorf("without questions: %d", code)
	}
}
