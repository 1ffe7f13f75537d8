// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
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
