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
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/tandem-proxy/tandem/core/config"
	prose "github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// dialTimeout bounds one attempt to connect. A short one notices sooner that a
// server has returned whose packets were lost: the pause between the
// retransmissions of a SYN grows.
const dialTimeout = 3 * time.Second

// Client is a connection to an API server, shared by everything that talks to
// it. It is safe for concurrent use.
type Client struct {
	config *rest.Config
	http   *http.Client
	limit  flowcontrol.RateLimiter // nil for none
	scheme *kruntime.Scheme
	codecs serializer.CodecFactory
}

// Request describes a request that was answered or failed.
type Request struct {
	Method string        // GET
	Host   string        // of the API server, as in the URL
	Code   string        // the status, or "<error>" where no answer came, as in rest_client_requests_total
	Watch  bool          // the answer is a stream that continues
	Took   time.Duration // to the headers of the answer
}

// Connect prepares a connection, and makes none yet. Each request is passed to
// seen, on its own goroutine, unless that is nil.
func Connect(api config.API, seen func(Request)) (*Client, error) {
	return processEnvironment().connect(api, seen)
}

func (p environment) connect(api config.API, seen func(Request)) (*Client, error) {
	c, err := p.connection(api)
	if err != nil {
		return nil, err
	}
	c.Dial = p.dial
	configure(c, api)
	if p.connected != nil {
		c.Dial = reportServers(c.Dial, net.DefaultResolver.LookupNetIP, p.connected)
	}
	c.Wrap(newOneAtATime)
	if seen != nil {
		c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &observedTransport{rt, seen} })
	}
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &boundedTransport{rt} })
	renewToken(c)
	ownTransport(c)
	hc, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w; correct the credentials or the certificates in the kubeconfig", prose.URL(c.Host), err)
	}
	hc.CheckRedirect = sameServer // never http.DefaultClient: the transport is wrapped
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	return &Client{config: c, http: hc, limit: limiter(api), scheme: scheme, codecs: serializer.NewCodecFactory(scheme)}, nil
}

// ownTransport keeps client-go from storing the transport in its cache, whose key holds
// Dial and with it everything that Dial refers to, the client included, for as long as the
// process lives. A transport with a proxy function is not cached; this one is the default.
func ownTransport(c *rest.Config) {
	if c.Proxy == nil {
		c.Proxy = http.ProxyFromEnvironment
	}
}

// configure sets what a user may set, with kube-proxy's defaults.
func configure(c *rest.Config, api config.API) {
	c.UserAgent = "tandem (" + runtime.GOOS + "/" + runtime.GOARCH + ")"
	c.ContentType = kruntime.ContentTypeProtobuf
	if api.ContentType != "" {
		c.ContentType = api.ContentType
	}
	c.AcceptContentTypes = c.ContentType
	if c.ContentType != kruntime.ContentTypeJSON {
		c.AcceptContentTypes += "," + kruntime.ContentTypeJSON
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
}

// limiter bounds the requests a second, with kube-proxy's defaults; a negative
// rate is none. Followed lists and watches do not count: they have a back-off of their own.
func limiter(api config.API) flowcontrol.RateLimiter {
	qps, burst := float32(5), 10
	if api.QPS != 0 {
		qps = api.QPS
	}
	if api.Burst != 0 {
		burst = api.Burst
	}
	if qps < 0 {
		return nil
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

// renewToken reads a token file again once a minute, as client-go does anyway,
// and also as soon as the server refuses the token, which client-go does not do
// by itself: a token that expired costs one request and not a minute.
func renewToken(c *rest.Config) {
	if c.BearerTokenFile == "" {
		return
	}
	c.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(c.BearerTokenFile)))
	c.BearerToken, c.BearerTokenFile = "", ""
}

// newScheme knows the kinds that Tandem reads or writes, and no others: the
// clientset of client-go would link all of Kubernetes' API.
func newScheme() (*kruntime.Scheme, error) {
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, eventsv1.AddToScheme, gateway.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// Host returns the URL of the API server for messages: without a password or a token.
func (c *Client) Host() string { return prose.URL(c.config.Host) }

// REST returns a client for one version of a group of the API: of v1,
// discovery.k8s.io/v1, networking.k8s.io/v1 and events.k8s.io/v1. All share the
// connection and the limit of requests a second.
func (c *Client) REST(gv schema.GroupVersion) (rest.Interface, error) { return c.rest(gv, c.limit) }

// rest returns a client whose requests wait for a limiter, unless it is nil.
func (c *Client) rest(gv schema.GroupVersion, limit flowcontrol.RateLimiter) (rest.Interface, error) {
	rc := *c.config
	rc.GroupVersion, rc.APIPath, rc.NegotiatedSerializer = &gv, "/apis", c.codecs.WithoutConversion()
	if gv.Group == "" {
		rc.APIPath = "/api"
	}
	rc.QPS, rc.RateLimiter = -1, limit
	client, err := rest.RESTClientForConfigAndClient(&rc, c.http)
	switch shown := c.Host(); {
	case err != nil && shown != c.config.Host: // the error holds the whole URL
		return nil, fmt.Errorf("API server %s: its address is no URL or HOST:PORT", shown)
	case err != nil:
		return nil, fmt.Errorf("API server %s: %w; is its address a URL or HOST:PORT?", shown, err)
	}
	return client, nil
}

// Codec translates options, such as metav1.ListOptions, to the parameters of a
// request to a REST client.
func (c *Client) Codec() kruntime.ParameterCodec { return kruntime.NewParameterCodec(c.scheme) }

// Close ends the connections that are idle.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// observedTransport reports every request.
type observedTransport struct {
	next http.RoundTripper
	seen func(Request)
}

func (o *observedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	start := time.Now()
	answer, err := o.next.RoundTrip(r)
	code := "<error>"
	if err == nil {
		code = fmt.Sprint(answer.StatusCode)
	}
	o.seen(Request{
		Method: r.Method, Host: r.URL.Host, Code: code, Took: time.Since(start),
		Watch: r.URL.Query().Get("watch") != "" && err == nil && answer.StatusCode == http.StatusOK,
	})
	return answer, err
}

// WrappedRoundTripper lets client-go find the transport underneath.
func (o *observedTransport) WrappedRoundTripper() http.RoundTripper { return o.next }

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
