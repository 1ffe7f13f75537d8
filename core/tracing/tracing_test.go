// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/tracing"
)

// receiver is a collector that keeps what it gets, or refuses it.
type receiver struct {
	*testing.T
	got    chan []*trace.Span
	mu     sync.Mutex
	refuse int // so many requests
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	b, err := io.ReadAll(q.Body)
	var request collector.ExportTraceServiceRequest
	if bad := proto.Unmarshal(b, &request); err != nil || bad != nil || q.URL.Path != "/v1/traces" || q.Header.Get("Content-Type") != "application/x-protobuf" {
		r.Errorf("%s, %v, %v", q.URL, err, bad)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse > 0 {
		r.refuse--
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	all := request.ResourceSpans[0]
	if a := all.Resource.Attributes; a[0].Key != "service.name" || a[0].Value.GetStringValue() != "tandem" || a[2].Value.GetStringValue() != "node-1" {
		r.Errorf("resource %v", a)
	}
	r.got <- all.ScopeSpans[0].Spans
}

// export runs an exporter of a history to a receiver on loopback.
func export(t *testing.T, refuse int) (*tracing.Exporter, *history.Recorder, *receiver) {
	t.Helper()
	r := &receiver{T: t, got: make(chan []*trace.Span, 100), refuse: refuse}
	server := httptest.NewServer(r)
	x, err := tracing.New(tracing.Options{Endpoint: server.URL, Node: "node-1", Version: "v1", Mode: "nftables", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h := &history.Recorder{}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); x.Run(ctx, h) }()
	t.Cleanup(func() { stop(); <-done; server.Close() })
	return x, h, r
}

// A change is a trace: one span from when its slice was written until the first packet can
// meet it, and in it one for the way here and for each stage, without a gap.
func TestTraceOfAChange(t *testing.T) {
	x, h, r := export(t, 1) // the first request is refused, and made again
	at := time.Now().UnixNano()
	h.Arrived(history.Change{Kind: history.EndpointSlice, At: at, Namespace: "shop", Name: "web-1", Service: "web", Version: 77, Age: 5 * time.Millisecond, Known: true})
	h.Arrived(history.Change{Kind: history.Service, At: at, Namespace: "shop", Name: "db", Service: "db"})
	h.Synced(history.Sync{At: at + int64(2*time.Millisecond), Stages: [history.Stages]time.Duration{2 * time.Millisecond, 3 * time.Millisecond, 4 * time.Millisecond, 6 * time.Millisecond}, Created: 1, Failed: 1, Err: "no room"})
	h.Arrived(history.Change{Kind: history.Service, At: at, Namespace: "shop", Name: "later", Service: "later"}) // not applied yet
	x.Synced()
	spans := <-r.got
	if len(spans) != 1+5+1+4 {
		t.Fatalf("%d spans: %v", len(spans), spans)
	}
	change := spans[0]
	if change.Name != "EndpointSlice changed" || change.Attributes[0].Value.GetStringValue() != "shop/web-1" || change.Attributes[2].Value.GetIntValue() != 77 ||
		change.Status.GetCode() != trace.Status_STATUS_CODE_ERROR || len(change.TraceId) != 16 || len(change.SpanId) != 8 {
		t.Errorf("%v", change)
	}
	if took := time.Duration(change.EndTimeUnixNano - change.StartTimeUnixNano); took.Round(time.Microsecond) != 20*time.Millisecond {
		t.Errorf("it took %s from being written until it could be met", took)
	}
	end := change.StartTimeUnixNano
	for i, want := range []string{"watch 5ms", "queue 2ms", "resolve 3ms", "compile 4ms", "write 6ms"} {
		s := spans[1+i]
		got := fmt.Sprint(s.Name, " ", time.Duration(s.EndTimeUnixNano-s.StartTimeUnixNano).Round(time.Microsecond))
		if got != want || s.StartTimeUnixNano != end || string(s.ParentSpanId) != string(change.SpanId) || string(s.TraceId) != string(change.TraceId) {
			t.Errorf("span %d: %s, from %d, want %s from %d", i, got, s.StartTimeUnixNano, want, end)
		}
		end = s.EndTimeUnixNano
	}
	if end != change.EndTimeUnixNano || spans[6].Name != "Service added" {
		t.Errorf("the last stage ends at %d, the change at %d; then %s", end, change.EndTimeUnixNano, spans[6].Name)
	}
	h.Synced(history.Sync{At: at + int64(9*time.Millisecond)})
	x.Synced()
	if spans = <-r.got; len(spans) != 5 || spans[0].Attributes[0].Value.GetStringValue() != "shop/later" {
		t.Errorf("then %v", spans)
	}
}

// Changes that did not arrive in the order of the clock, since it was set back or since several
// goroutines deliver them, are sent once each.
func TestClockSetBack(t *testing.T) {
	x, h, r := export(t, 0)
	at := time.Now()
	arrive := func(name string, at time.Time) {
		h.Arrived(history.Change{Kind: history.Service, At: at.UnixNano(), Namespace: "shop", Name: name, Service: name})
		h.Synced(history.Sync{At: at.UnixNano()})
	}
	arrive("first", at)
	arrive("second", at.Add(-time.Hour))
	x.Synced()
	if spans := <-r.got; len(spans) != 2*5 {
		t.Fatalf("%d spans of two changes", len(spans))
	}
	arrive("third", at.Add(-time.Minute))
	x.Synced()
	if spans := <-r.got; len(spans) != 5 || spans[0].Attributes[0].Value.GetStringValue() != "shop/third" {
		t.Errorf("then %d spans, the first of %s", len(spans), spans[0].Attributes[0].Value.GetStringValue())
	}
}

// Many changes come in requests that are bounded, and none twice.
func TestManyChanges(t *testing.T) {
	x, h, r := export(t, 0)
	const n = 2500
	for i := range n {
		h.Arrived(history.Change{Kind: history.Service, At: time.Now().UnixNano(), Namespace: "shop", Name: fmt.Sprint("s", i), Service: fmt.Sprint("s", i)})
	}
	h.Synced(history.Sync{At: time.Now().UnixNano()})
	x.Synced()
	seen := map[string]bool{}
	for len(seen) < n {
		spans := <-r.got
		if len(spans) > 5*1000 {
			t.Errorf("%d spans in a request", len(spans))
		}
		for _, s := range spans {
			if s.ParentSpanId != nil {
				continue
			}
			name := s.Attributes[0].Value.GetStringValue()
			if seen[name] {
				t.Errorf("%s twice", name)
			}
			seen[name] = true
		}
	}
}

// Without an endpoint there is no exporter; what the engine calls costs nothing.
func TestOffCostsNothing(t *testing.T) {
	x, err := tracing.New(tracing.Options{})
	if x != nil || err != nil {
		t.Fatalf("%v, %v", x, err)
	}
	if n := testing.AllocsPerRun(100, x.Synced); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if _, err := tracing.New(tracing.Options{Endpoint: "http://node:hunter2@[::1"}); err == nil || !strings.Contains(err.Error(), "trace endpoint") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a broken URL: %v", err)
	}
}

// A collector that does not answer is asked less and less often, and logged once, without its password and token.
func TestCollectorIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, log := 0, &strings.Builder{}
		x, err := tracing.New(tracing.Options{Endpoint: "http://node:hunter2@collector.invalid/?token=hunter2", Log: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		x.Through(func(*http.Request) (*http.Response, error) { tries++; return nil, io.ErrUnexpectedEOF })
		h := &history.Recorder{}
		h.Arrived(history.Change{Kind: history.Mode})
		h.Synced(history.Sync{})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go x.Run(ctx, h)
		x.Synced()
		time.Sleep(time.Hour)
		synctest.Wait()
		if told := strings.Count(log.String(), "sending traces failed"); tries < 60 || tries > 70 || told != 1 || strings.Contains(log.String(), "hunter2") {
			t.Errorf("tried %d times in an hour, logged %d times: %s", tries, told, log)
		}
	})
}

// A redirect is an answer like others: traces, which name Services, go to the collector that the
// configuration names and nowhere else.
func TestRedirectsAreRefused(t *testing.T) {
	for _, code := range []int{301, 302, 303, 307, 308} {
		elsewhere := make(chan string, 10)
		other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { elsewhere <- r.Method }))
		asked := make(chan struct{}, 10)
		collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/v1/traces", code)
			asked <- struct{}{}
		}))
		said := make(chan string, 10)
		x, err := tracing.New(tracing.Options{Endpoint: collector.URL, Node: "node-1", Log: slog.New(slog.NewTextHandler(lines(said), nil))})
		if err != nil {
			t.Fatal(err)
		}
		h := &history.Recorder{}
		h.Arrived(history.Change{Kind: history.Service, At: time.Now().UnixNano(), Namespace: "shop", Name: "db", Service: "db"})
		h.Synced(history.Sync{At: time.Now().UnixNano()})
		x.Synced()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); x.Run(ctx, h) }()
		<-asked
		select {
		case method := <-elsewhere:
			t.Errorf("%d: a %s went elsewhere", code, method)
		case line := <-said:
			if !strings.Contains(line, http.StatusText(code)) {
				t.Errorf("%d: the log has %s", code, line)
			}
		}
		stop()
		<-done
		collector.Close()
		other.Close()
	}
}

// lines is a writer of lines.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }
