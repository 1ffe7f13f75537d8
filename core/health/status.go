package health

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// statusAge is how old a status may be. Making one takes the engine's time, so
// that whoever asks all the time must not get one each time.
const statusAge = 200 * time.Millisecond

// recent serves a document, made anew when the last one is too old, one at a
// time.
type recent struct {
	make func(context.Context) (any, error)
	turn chan struct{} // holds a token while one is made

	mu  sync.Mutex
	doc []byte
	at  time.Time
}

// ServeHTTP implements http.Handler.
func (r *recent) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	doc, err := r.get(req.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	writeBytes(w, http.StatusOK, "application/json", doc)
}

func newRecent(status func(context.Context) (any, error)) *recent {
	return &recent{make: status, turn: make(chan struct{}, 1)}
}

// get waits for its turn no longer than its client does: an engine that is busy for
// minutes must not gather clients until nobody else gets an answer.
func (r *recent) get(ctx context.Context) ([]byte, error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if doc := r.latest(); doc != nil {
		return doc, nil
	}
	doc, err := r.make(ctx)
	if err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err == nil {
		r.keep(b)
	}
	return b, err
}

// latest returns the document that was made last, nil when that is too old.
func (r *recent) latest() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) >= statusAge {
		return nil
	}
	return r.doc
}

func (r *recent) keep(doc []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doc, r.at = doc, time.Now()
	time.AfterFunc(statusAge, r.forget)
}

// forget lets go of a document that is too old: it may be tens of megabytes.
func (r *recent) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) >= statusAge {
		r.doc = nil
	}
}

// local refuses requests that a browser was tricked into sending: a name that
// is not this machine's in the Host header means that somebody else's DNS led
// here (DNS rebinding).
func local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			http.Error(w, "ask by IP address or as localhost", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// fromHere refuses requests from other machines and pods, too: what shows the
// program's memory, or costs it time, is for who is on this machine. The metrics
// address may be open to all of the cluster.
func fromHere(h http.HandlerFunc) http.Handler {
	return local(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !client.Addr().Unmap().IsLoopback() {
			http.Error(w, "ask from this machine, over a loopback address", http.StatusForbidden)
			return
		}
		h(w, r)
	}))
}
