// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/question"
)

func sources() health.Sources {
	return health.Sources{
		Health:  func() question.Health { return question.Health{Synced: true} },
		Status:  state(map[string]int{"services": 3}),
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "up 1\n") }),
		SLIs:    http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "sli 1\n") }),
		Mode:    func() string { return "nftables" },
		Config:  func() any { return map[string]string{"kind": "KubeProxyConfiguration"} },
	}
}

// state has one document, whatever the filter.
func state(doc any) func(context.Context) (func(question.Filter) any, error) {
	return func(context.Context) (func(question.Filter) any, error) {
		return func(question.Filter) any { return doc }, nil
	}
}

func ask(s health.Sources, path, host string) *httptest.ResponseRecorder {
	req := httptest.NewRequest("GET", path, nil)
	req.Host, req.RemoteAddr = host, "127.0.0.1:40000"
	w := httptest.NewRecorder()
	health.Pages(s).ServeHTTP(w, req)
	return w
}

func TestPages(t *testing.T) {
	bad := sources()
	bad.Health = func() question.Health { return question.Health{Stuck: true, Reasons: []string{"kernel says no"}} }
	young := sources()
	young.Health = func() question.Health { return question.Health{Reasons: []string{"nothing yet"}} }
	profiled := sources()
	profiled.Profile = true
	const text = "text/plain; charset=utf-8"
	for _, c := range []struct {
		sources health.Sources
		path    string
		code    int
		kind    string
		body    string
	}{
		{sources(), "/healthz", 200, text, "ok"},
		{sources(), "/healthz?verbose", 200, text, "[+]ping ok\nhealthz check passed\n"},
		{sources(), "/healthz/ping", 200, text, "ok"},
		{bad, "/healthz/ping", 500, text, "[-]ping failed: kernel says no\nhealthz check failed\n"},
		{sources(), "/livez", 200, text, "ok"},
		{bad, "/healthz", 500, text, "[-]ping failed: kernel says no\nhealthz check failed\n"},
		{bad, "/livez", 500, text, "[-]ping failed: kernel says no\nlivez check failed\n"},
		{young, "/healthz", 500, text, "[-]ping failed: nothing yet\nhealthz check failed\n"},
		{young, "/livez", 200, text, "ok"},
		{sources(), "/proxyMode", 200, text, "nftables"},
		{sources(), "/configz", 200, "application/json", `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration"}}`},
		{sources(), "/metrics", 200, "", "up 1\n"},
		{sources(), "/metrics/slis", 200, "", "sli 1\n"},
		{sources(), "/status", 200, "application/json", "{\"services\":3}"},
		{sources(), "/debug/pprof/", 404, text, "404 page not found\n"},
		{sources(), "/debug/flags/v", 404, text, "404 page not found\n"},
		{profiled, "/debug/pprof/symbol", 200, text, "num_symbols: 1\n"},
	} {
		w := ask(c.sources, c.path, "127.0.0.1")
		if w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.path, w.Code, w.Body, c.code, c.body)
		}
		if c.kind != "" && (w.Header().Get("Content-Type") != c.kind || w.Header().Get("X-Content-Type-Options") != "nosniff") {
			t.Errorf("%s: header %v", c.path, w.Header())
		}
	}
}

// A page on the web must not read the status, or the metrics, through the user's browser.
func TestPagesAreNotForForeignNames(t *testing.T) {
	for _, path := range []string{"/status", "/statusz", "/metrics", "/metrics/slis"} {
		for host, want := range map[string]int{
			"127.0.0.1:10249": 200, "localhost:10249": 200, "[::1]:10249": 200, "[::1]": 200, "localhost": 200,
			"evil.example:10249": 403, "evil.example": 403,
		} {
			if w := ask(sources(), path, host); w.Code != want {
				t.Errorf("%s of %s: %d, want %d", path, host, w.Code, want)
			}
		}
	}
}

// The API server's proxy of pods keeps the Host header of its client: a kubeconfig that
// names the API server reaches the status, from an address that is not loopback, with a token
// in a header that it passes on.
func TestStatusThroughTheProxyOfPods(t *testing.T) {
	s := sources()
	s.Review = (&office{grants: map[string]health.Grant{"good": health.Granted}}).review
	pages := health.Pages(s)
	tandem := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = "192.0.2.1:40000" // of the API server
		pages.ServeHTTP(w, r)
	}))
	defer tandem.Close()
	at, err := url.Parse(tandem.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(at)
	for path, want := range map[string]int{"/status": 200, "/statusz": 200, "/configz": 403, "/flagz": 404} {
		req := httptest.NewRequest("GET", path, nil)
		req.Host = "api.cluster.example:6443"
		req.Header.Set(health.TokenHeader, "good")
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, req)
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
}

// Configuration and profiles are for this machine alone, and not for web pages
// that a browser on it shows.
func TestConfigurationAndProfilesAreForThisMachine(t *testing.T) {
	s := sources()
	s.Profile = true
	for _, path := range []string{"/configz", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/symbol", "/debug/pprof/heap"} {
		for _, c := range []struct {
			from, host string
			code       int
		}{
			{"127.0.0.1:1", "127.0.0.1:10249", 200},
			{"[::1]:1", "localhost:10249", 200},
			{"[::ffff:127.0.0.1]:1", "[::1]:10249", 200},
			{"127.0.0.1:1", "evil.example:10249", 403},
			{"192.0.2.7:1", "192.0.2.1:10249", 403},
			{"[2001:db8::7]:1", "localhost", 403},
			{"@", "localhost", 403},
		} {
			req := httptest.NewRequest("GET", path, nil)
			req.Host, req.RemoteAddr = c.host, c.from
			w := httptest.NewRecorder()
			health.Pages(s).ServeHTTP(w, req)
			if w.Code != c.code {
				t.Errorf("%s from %s as %s: %d, want %d", path, c.from, c.host, w.Code, c.code)
			}
		}
	}
}

// Whatever is asked, nothing is written, nothing fails, and what is for this
// machine alone stays here.
func FuzzPages(f *testing.F) {
	for _, path := range []string{"/status", "/configz", "/healthz?verbose", "/metrics", "/debug/pprof/cmdline", "//configz", "/debug/pprof/../../configz", "/proxyMode"} {
		f.Add("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
		f.Add("POST " + path + " HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 3\r\n\r\nabc")
	}
	s := sources()
	pages := health.Pages(s)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		r.RemoteAddr = "192.0.2.7:4000"
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		if w.Code >= 500 || strings.Contains(w.Body.String(), "KubeProxyConfiguration") {
			t.Errorf("%q: %d %s", text, w.Code, w.Body)
		}
	})
}

// However often a client asks, whatever the filter, the engine is asked a few times a second.
func TestStatusIsMadeAFewTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		s := sources()
		s.Status = func(ctx context.Context) (func(question.Filter) any, error) { made++; return state("doc")(ctx) }
		h := health.Pages(s)
		for i := range 1000 {
			req := httptest.NewRequest("GET", []string{"/status", "/status?namespace=a", "/status?state=Failing"}[i%3], nil)
			req.Host, req.RemoteAddr = "localhost", "127.0.0.1:40000"
			h.ServeHTTP(httptest.NewRecorder(), req)
			time.Sleep(time.Millisecond)
		}
		if made != 5 {
			t.Errorf("made %d times in a second", made)
		}
	})
}

// While a status takes long, waiting clients may leave at any time.
func TestStatusIsWaitedForNoLongerThanAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		s := sources()
		s.Status = func(ctx context.Context) (func(question.Filter) any, error) { <-busy; return state("doc")(ctx) }
		h := health.Pages(s)
		get := func(patience time.Duration) (code int, took time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			req := httptest.NewRequestWithContext(ctx, "GET", "/status", nil)
			req.Host, req.RemoteAddr = "localhost", "127.0.0.1:40000"
			w, start := httptest.NewRecorder(), time.Now()
			h.ServeHTTP(w, req)
			return w.Code, time.Since(start)
		}
		time.AfterFunc(time.Hour, func() { close(busy) })
		first := make(chan int)
		go func() { code, _ := get(2 * time.Hour); first <- code }()
		synctest.Wait()
		if code, took := get(time.Second); code != 503 || took != time.Second {
			t.Errorf("%d after %s", code, took)
		}
		if code := <-first; code != 200 {
			t.Errorf("the first gets %d", code)
		}
	})
}

func TestStatusErrors(t *testing.T) {
	s := sources()
	s.Status = func(context.Context) (func(question.Filter) any, error) { return nil, errors.New("busy") }
	if w := ask(s, "/status", "localhost"); w.Code != 503 || !strings.Contains(w.Body.String(), "busy") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// The pages of /ui are for this machine alone, and not for names that lead here.
func TestUIIsLocal(t *testing.T) {
	s := sources()
	s.UI = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "page") })
	for _, path := range []string{"/ui", "/ui/history"} {
		if w := ask(s, path, "127.0.0.1:10249"); w.Code != http.StatusOK {
			t.Errorf("%s: %d", path, w.Code)
		}
		if w := ask(s, path, "evil.example"); w.Code != http.StatusForbidden {
			t.Errorf("%s by another name: %d", path, w.Code)
		}
		req := httptest.NewRequest("GET", path, nil)
		req.Host, req.RemoteAddr = "192.0.2.1:10249", "10.244.0.9:40000"
		w := httptest.NewRecorder()
		if health.Pages(s).ServeHTTP(w, req); w.Code != http.StatusForbidden {
			t.Errorf("%s for a pod: %d", path, w.Code)
		}
	}
}
