package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
)

func sources() health.Sources {
	return health.Sources{
		Unhealthy: func() []string { return nil },
		Status:    func(context.Context) (any, error) { return map[string]int{"services": 3}, nil },
		Metrics:   http.NotFoundHandler(),
	}
}

func ask(s health.Sources, method, path, host string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, nil)
	req.Host = host
	w := httptest.NewRecorder()
	health.Handler(s).ServeHTTP(w, req)
	return w
}

func TestHealthzFollowsHealth(t *testing.T) {
	s := sources()
	if w := ask(s, "GET", "/healthz", "127.0.0.1"); w.Code != 200 || !strings.Contains(w.Body.String(), `"healthy": true`) {
		t.Errorf("healthy: %d %s", w.Code, w.Body)
	}
	s.Unhealthy = func() []string { return []string{"nothing has been programmed yet"} }
	if w := ask(s, "GET", "/healthz", "127.0.0.1"); w.Code != 503 || !strings.Contains(w.Body.String(), "nothing has been programmed yet") {
		t.Errorf("unhealthy: %d %s", w.Code, w.Body)
	}
	if w := ask(s, "GET", "/livez", "127.0.0.1"); w.Code != 200 {
		t.Errorf("livez: %d", w.Code)
	}
}

func TestOnlyReads(t *testing.T) {
	for _, path := range []string{"/healthz", "/livez", "/status", "/metrics"} {
		for _, method := range []string{"POST", "PUT", "DELETE"} {
			if w := ask(sources(), method, path, "127.0.0.1"); w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
}

// A page on the web must not read the status through the user's browser.
func TestStatusIsNotForForeignNames(t *testing.T) {
	for host, want := range map[string]int{
		"127.0.0.1:10249": 200, "localhost:10249": 200, "[::1]:10249": 200, "[::1]": 200, "localhost": 200,
		"evil.example:10249": 403, "evil.example": 403,
	} {
		if w := ask(sources(), "GET", "/status", host); w.Code != want {
			t.Errorf("%s: %d, want %d", host, w.Code, want)
		}
	}
}

// However often a client asks, the engine is asked a few times a second.
func TestStatusIsMadeAFewTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		s := sources()
		s.Status = func(context.Context) (any, error) { made++; return "doc", nil }
		h := health.Handler(s)
		for range 1000 {
			req := httptest.NewRequest("GET", "/status", nil)
			req.Host = "localhost"
			h.ServeHTTP(httptest.NewRecorder(), req)
			time.Sleep(time.Millisecond)
		}
		if made != 5 {
			t.Errorf("made %d times in a second", made)
		}
	})
}

func TestStatusErrors(t *testing.T) {
	s := sources()
	s.Status = func(context.Context) (any, error) { return nil, errors.New("busy") }
	if w := ask(s, "GET", "/status", "localhost"); w.Code != 503 {
		t.Errorf("got %d", w.Code)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- health.Serve(ctx, l, sources()) }()
	res, err := http.Get("http://" + l.Addr().String() + "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var doc map[string]int
	if err := json.NewDecoder(res.Body).Decode(&doc); err != nil || doc["services"] != 3 {
		t.Errorf("%v %v", doc, err)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("still serving")
	}
}
