package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
)

// What an API server, or whatever answers in its place, may send.
const (
	maxAnswer = 512 << 20 // bytes of a list; 100,000 EndpointSlices of 5 endpoints are about 300 MB as JSON
	maxEvent  = 8 << 20   // bytes of a watch between two events; etcd stores 1.5 MB of an object
	maxError  = 64 << 10  // bytes of an error that are read; the rest is ignored
	maxHops   = 3         // redirects within the server
)

var (
	errTooMuch  = errors.New("answer too large")
	errRedirect = errors.New("redirect refused")
)

// sameServer is an http.Client's CheckRedirect. Each request carries the
// credentials, so that none may go where they are not for.
func sameServer(next *http.Request, before []*http.Request) error {
	first := before[0].URL
	if next.URL.Scheme != first.Scheme || next.URL.Host != first.Host {
		return fmt.Errorf("%w: the API server %s sends to %s", errRedirect, first.Host, next.URL.Redacted())
	}
	if len(before) > maxHops {
		return fmt.Errorf("%w: the API server %s redirects more than %d times", errRedirect, first.Host, maxHops)
	}
	return nil
}

// bounded is a transport whose answers end.
type bounded struct{ next http.RoundTripper }

// WrappedRoundTripper lets client-go find the transport underneath.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	spent, isStream := r.Context().Value(spentKey{}).(*atomic.Int64)
	switch {
	case answer.StatusCode >= http.StatusMultipleChoices:
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, maxError), answer.Body}
	case isStream:
		answer.Body = &boundedBody{answer.Body, spent, maxEvent, "without completing an event"}
	default:
		answer.Body = &boundedBody{answer.Body, new(atomic.Int64), maxAnswer, "in one answer"}
	}
	return answer, nil
}

// spentKey is the key of a context that belongs to a watch: how many bytes were
// read since its last event, as *atomic.Int64.
type spentKey struct{}

// metered returns a context for a watch and what its events reset to 0.
func metered(ctx context.Context) (context.Context, *atomic.Int64) {
	spent := new(atomic.Int64)
	return context.WithValue(ctx, spentKey{}, spent), spent
}

// boundedBody is a body that fails where it grows beyond a limit.
type boundedBody struct {
	io.ReadCloser
	spent *atomic.Int64
	most  int64
	what  string
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.spent.Add(int64(n)) > b.most {
		return 0, fmt.Errorf("%w: more than %d MiB %s", errTooMuch, b.most>>20, b.what)
	}
	return n, err
}
