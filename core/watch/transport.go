// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the responses of an API server.
const (
	maxAnswer = 512 << 20 // bytes of a list; 100,000 EndpointSlices of 5 endpoints are about 300 MB as JSON
	maxEvent  = 8 << 20   // bytes of a watch between two events; etcd stores 1.5 MB of an object
	maxError  = 64 << 10  // bytes of an error that are read; the rest is ignored
	maxHops   = 3         // redirects within the server
)

var (
	errTooMuch  = errors.New("response too large")
	errRedirect = errors.New("redirect rejected")
)

// sameServer is an http.Client's CheckRedirect. Each request carries credentials, so
// none may go to another server.
func sameServer(next *http.Request, before []*http.Request) error {
	first := before[0].URL
	if next.URL.Scheme != first.Scheme || next.URL.Host != first.Host {
		return fmt.Errorf("%w: API server %s redirects to %s", errRedirect, first.Host, next.URL.Redacted())
	}
	if len(before) > maxHops {
		return fmt.Errorf("%w: API server %s redirects more than %d times", errRedirect, first.Host, maxHops)
	}
	return nil
}

// boundedTransport is a transport with bounded responses.
type boundedTransport struct{ next http.RoundTripper }

// WrappedRoundTripper lets client-go find the transport underneath.
func (b *boundedTransport) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip implements http.RoundTripper.
func (b *boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
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

// withByteCount returns a context for a watch and what its events reset to 0.
func withByteCount(ctx context.Context) (context.Context, *atomic.Int64) {
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

// oneAtATime lets one request at a time get a connection. Over HTTP/2 the others then
// share the one that it made; all at once, each would make its own, of which all but
// one are closed again: four TLS handshakes for each node whenever a server returns.
type oneAtATime struct {
	next http.RoundTripper
	turn chan struct{} // holds a token while a request has no connection yet
}

// newOneAtATime wraps a transport.
func newOneAtATime(next http.RoundTripper) http.RoundTripper {
	return &oneAtATime{next, make(chan struct{}, 1)}
}

// WrappedRoundTripper lets client-go find the transport underneath.
func (o *oneAtATime) WrappedRoundTripper() http.RoundTripper { return o.next }

// RoundTrip implements http.RoundTripper.
func (o *oneAtATime) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case o.turn <- struct{}{}:
	case <-r.Context().Done():
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, context.Cause(r.Context())
	}
	next := sync.OnceFunc(func() { <-o.turn })
	defer next()
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { next() }}
	return o.next.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
}

type lookup = func(ctx context.Context, network, host string) ([]netip.Addr, error)

// The bounds of the addresses reported for a server name.
const (
	lookupTimeout = time.Second
	maxAddresses  = 64
	maxKnown      = 2 * maxAddresses
)

// reportServers reports the addresses of what is connected to, before the connection
// is used. While the server's name does not resolve, earlier addresses are reported,
// too.
func reportServers(dial Dialer, resolve lookup, report func([]netip.AddrPort)) Dialer {
	var mu sync.Mutex // of known; also orders the reports
	var known []netip.AddrPort
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if remote, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			remote = netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())
			found, complete := serversOf(ctx, resolve, address, remote)
			mu.Lock()
			defer mu.Unlock()
			if !complete {
				found = append(found, known[:min(len(known), maxKnown-len(found))]...)
			}
			slices.SortFunc(found, netip.AddrPort.Compare)
			known = slices.Compact(found)
			report(slices.Clone(known))
		}
		return conn, nil
	}
}

// serversOf returns the address connected to and the others of the server's name,
// which the next connection may go to, and whether these are all.
func serversOf(ctx context.Context, resolve lookup, address string, remote netip.AddrPort) (all []netip.AddrPort, complete bool) {
	all = []netip.AddrPort{remote}
	host, _, err := net.SplitHostPort(address)
	if err != nil || net.ParseIP(host) != nil {
		return all, true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := resolve(ctx, "ip", host)
	for _, ip := range ips[:min(len(ips), maxAddresses-1)] {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), remote.Port()))
	}
	return all, err == nil
}

// Dialer makes a connection, as net.Dialer.DialContext does.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)
