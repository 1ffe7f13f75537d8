// Package health serves what Tandem knows of itself over HTTP: /healthz,
// /livez, /metrics and /status. It only reads.
package health

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Sources are where the answers come from. All are safe for concurrent use.
type Sources struct {
	// Unhealthy returns why Tandem cannot be relied on, nothing when it can.
	Unhealthy func() []string
	// Status returns the status document.
	Status func(context.Context) (any, error)
	// Metrics serves the metrics.
	Metrics http.Handler
}

// The limits that keep one slow or hostile client from harming others.
const (
	headerTimeout = 5 * time.Second
	answerTimeout = 30 * time.Second
	maxHeader     = 16 << 10
)

// Serve answers on a listener until ctx ends, and closes it.
func Serve(ctx context.Context, l net.Listener, s Sources) error {
	server := &http.Server{
		Handler:           Handler(s),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout, IdleTimeout: answerTimeout,
		MaxHeaderBytes: maxHeader,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler answers GET and HEAD only.
func Handler(s Sources) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, nil) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		code, reasons := http.StatusOK, s.Unhealthy()
		if len(reasons) > 0 {
			code = http.StatusServiceUnavailable
		}
		answer(w, code, reasons)
	})
	mux.Handle("GET /metrics", s.Metrics)
	last := &recent{make: s.Status}
	mux.Handle("GET /status", local(func(w http.ResponseWriter, r *http.Request) {
		doc, err := last.get(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		write(w, http.StatusOK, doc)
	}))
	return mux
}

// statusAge is how old a status may be. Making one takes the engine's time, so
// that whoever asks all the time must not get one each time.
const statusAge = 200 * time.Millisecond

// recent makes a document anew when the last one is too old, one at a time.
type recent struct {
	make func(context.Context) (any, error)

	mu  sync.Mutex
	doc any
	at  time.Time
}

func (r *recent) get(ctx context.Context) (any, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doc != nil && time.Since(r.at) < statusAge {
		return r.doc, nil
	}
	doc, err := r.make(ctx)
	if err == nil {
		r.doc, r.at = doc, time.Now()
	}
	return doc, err
}

// local refuses requests that a browser was tricked into sending: a name that
// is not this machine's in the Host header means that somebody else's DNS led
// here.
func local(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			http.Error(w, "ask by IP address or as localhost", http.StatusForbidden)
			return
		}
		h(w, r)
	})
}

func answer(w http.ResponseWriter, code int, reasons []string) {
	write(w, code, struct {
		CurrentTime time.Time `json:"currentTime"`
		Healthy     bool      `json:"healthy"`
		Reasons     []string  `json:"reasons,omitempty"`
	}{time.Now(), len(reasons) == 0, reasons})
}

func write(w http.ResponseWriter, code int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(doc) // the client is gone; there is nobody to tell
}
