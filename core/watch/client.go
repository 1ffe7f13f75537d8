// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/sleep"
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

// Connect prepares a connection, and makes none yet.
func Connect(api config.API) (*Client, error) { return processEnvironment().connect(api) }

func (p environment) connect(api config.API) (*Client, error) {
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
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &boundedTransport{rt} })
	renewToken(c)
	ownTransport(c)
	hc, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w; correct the credentials or the certificates in the kubeconfig", printable.URL(c.Host), err)
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
func (c *Client) Host() string { return printable.URL(c.config.Host) }

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

// decoders returns what decodes watches, by the type of the answer.
func (c *Client) decoders() kruntime.ClientNegotiator {
	return kruntime.NewClientNegotiator(c.codecs.WithoutConversion(), schema.GroupVersion{}) // of what is encoded: nothing
}

// Close ends the connections that are idle.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

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
	limit, _ := r.Context().Value(boundKey{}).(*bound)
	if limit == nil {
		limit = &bound{most: maxAnswer, what: "in one answer"}
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		answer.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(answer.Body, maxError), answer.Body}
	} else {
		limit.content = answer.Header.Get("Content-Type")
		answer.Body = &boundedBody{answer.Body, limit}
	}
	return answer, nil
}

// boundKey is the key of a context with a *bound.
type boundKey struct{}

// bound is how many bytes of an answer are read. It belongs to the goroutine that makes the request and reads the answer.
type bound struct {
	spent   int64
	most    int64
	what    string
	content string // type of the answer
}

// within returns a context whose request reads so many bytes at most.
func within(ctx context.Context, most int64) context.Context {
	return context.WithValue(ctx, boundKey{}, &bound{most: most, what: "in one answer"})
}

// withByteCount returns a context for a watch, and a bound of which its events reset what is spent.
func withByteCount(ctx context.Context) (context.Context, *bound) {
	b := &bound{most: maxEvent, what: incompleteEvent}
	return context.WithValue(ctx, boundKey{}, b), b
}

// boundedBody is a body that fails where it grows beyond a limit.
type boundedBody struct {
	io.ReadCloser
	*bound
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.spent += int64(n); b.spent > b.most {
		return 0, tooLong(b.most, b.what)
	}
	return n, err
}

// incompleteEvent is what of a watch is too large.
const incompleteEvent = "without completing an event"

func tooLong(most int64, what string) error {
	return fmt.Errorf("%w: more than %d MiB %s", errTooMuch, most>>20, what)
}

// oneAtATime lets one request at a time get a connection. Over HTTP/2 the others then
// share the one that it made; all at once, each would make its own, of which all but
// one are closed again: four TLS handshakes for each node whenever a server returns.
type oneAtATime struct {
	next http.RoundTripper
	turn sleep.Turn // of a request that has no connection yet
}

// newOneAtATime wraps a transport.
func newOneAtATime(next http.RoundTripper) http.RoundTripper {
	return &oneAtATime{next, make(sleep.Turn, 1)}
}

// WrappedRoundTripper lets client-go find the transport underneath.
func (o *oneAtATime) WrappedRoundTripper() http.RoundTripper { return o.next }

func (o *oneAtATime) RoundTrip(r *http.Request) (*http.Response, error) {
	if o.turn.Take(r.Context()) != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, context.Cause(r.Context())
	}
	next := sync.OnceFunc(o.turn.Give)
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

// The files of a pod's service account.
const (
	accountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	accountCA    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

// connection returns how the API server is reached: by the kubeconfig, else by the
// server's address alone, else as the pod that this is. It is kube-proxy's order.
func (p environment) connection(api config.API) (*rest.Config, error) {
	switch {
	case api.Kubeconfig != "":
		return p.kubeconfig(api.Kubeconfig, api.Server)
	case api.Server != "":
		return &rest.Config{Host: api.Server}, nil
	default:
		return p.pod()
	}
}

// kubeconfig reads a kubeconfig. A server overrides the one it names.
func (p environment) kubeconfig(name, server string) (*rest.Config, error) {
	wrong := func(err error, advice string) error {
		return fmt.Errorf("kubeconfig %s: %w; %s", name, err, advice)
	}
	file := p.path(name)
	kube, err := clientcmd.LoadFromFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, wrong(fs.ErrNotExist, "set --kubeconfig to its path, or leave it empty in a pod with a service account")
	case errors.Is(err, fs.ErrPermission):
		return nil, wrong(fs.ErrPermission, "make it readable for the user that runs tandem")
	case err != nil:
		return nil, wrong(err, "it must be YAML of kind Config, as printed by kubectl config view")
	}
	if err := p.complete(kube, server); err != nil {
		return nil, wrong(err, "see kubectl --kubeconfig FILE config view")
	}
	// A pod's paths have no drive letter; on Windows client-go takes those for
	// relative.
	for _, ref := range clientcmd.GetConfigFileReferences(kube) {
		if !strings.HasPrefix(*ref, "/") {
			continue
		}
		if *ref, err = filepath.Abs(p.path(*ref)); err != nil {
			return nil, wrong(err, "give absolute paths")
		}
	}
	// Relative paths count from the kubeconfig's folder.
	if err := clientcmd.ResolveLocalPaths(kube); err != nil {
		return nil, wrong(err, "give absolute paths")
	}
	for _, ref := range clientcmd.GetConfigFileReferences(kube) {
		*ref = p.path(*ref)
	}
	over := &clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: server}}
	c, err := clientcmd.NewDefaultClientConfig(*kube, over).ClientConfig()
	if err != nil {
		return nil, wrong(err, "correct that entry")
	}
	return c, nil
}

// complete checks that a kubeconfig's current context leads to a server, with clearer
// messages than client-go's.
func (p environment) complete(kube *clientcmdapi.Config, server string) error {
	if kube.CurrentContext == "" {
		return errors.New("no current-context")
	}
	c := kube.Contexts[kube.CurrentContext]
	if c == nil {
		return fmt.Errorf("current-context %q is not defined", kube.CurrentContext)
	}
	cluster := kube.Clusters[c.Cluster]
	if cluster == nil {
		return fmt.Errorf("context %q: cluster %q is not defined", kube.CurrentContext, c.Cluster)
	}
	if cluster.Server == "" && server == "" {
		return fmt.Errorf("cluster %q has no server", c.Cluster)
	}
	if c.AuthInfo != "" && kube.AuthInfos[c.AuthInfo] == nil {
		return fmt.Errorf("context %q: user %q is not defined", kube.CurrentContext, c.AuthInfo)
	}
	return nil
}

// pod connects with the service account of the pod that this is. The token file is
// re-read, since the kubelet renews it.
func (p environment) pod() (*rest.Config, error) {
	host, port := p.getenv("KUBERNETES_SERVICE_HOST"), p.getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("no API server: not running in a pod (KUBERNETES_SERVICE_HOST and _PORT are not set); " +
			"set --kubeconfig or --master, or a folder with --manifests")
	}
	token, ca := p.path(accountToken), p.path(accountCA)
	for _, file := range []string{token, ca} {
		if _, err := os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("service account of the pod: %w; set serviceAccountName and do not set automountServiceAccountToken to false, or set --kubeconfig", err)
		}
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(host, port),
		BearerTokenFile: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: ca},
	}, nil
}

// environment is the file system and environment variables of this process.
type environment struct {
	getenv func(string) string
	exists func(string) bool

	connected func([]netip.AddrPort) // as in Hooks
	dial      Dialer                 // the same
}

// WorldWritable reports whether any user of this machine may write a file or folder. On
// Windows the mode of a file does not tell; it is false there.
func WorldWritable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0
}

func processEnvironment() environment {
	return environment{getenv: os.Getenv, exists: func(name string) bool {
		_, err := os.Stat(name)
		return !errors.Is(err, fs.ErrNotExist)
	}}
}

// sandboxEnv names the folder under which a Windows HostProcess container finds
// its volumes: containerd before 1.7 mounts them there, and not where the pod
// says (KEP-1981).
const sandboxEnv = "CONTAINER_SANDBOX_MOUNT_POINT"

// Path returns where a file that the pod names really is.
func Path(name string) string { return processEnvironment().path(name) }

// path returns where a file of the pod really is: at its own path, or else
// under the sandbox's mount point.
func (p environment) path(name string) string {
	root := p.getenv(sandboxEnv)
	if root == "" || name == "" || p.exists(name) {
		return name
	}
	inside := filepath.Join(root, strings.TrimPrefix(name, filepath.VolumeName(name)))
	if p.exists(inside) {
		return inside
	}
	return name
}

// Audience is what a token must have been made for, to be shown to Tandem. The pages are served
// without TLS: a token that the API server itself accepts must not be sent there.
const Audience = "tandem"

// The rate of reviews, of which each is two requests. It is apart from that of Events: strangers
// cause them.
const (
	reviewRate  = 5 // requests a second
	reviewBurst = 10
)

// tokenReview is what is used of a TokenReview of authentication.k8s.io/v1.
type tokenReview struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Spec       tokenReviewSpec   `json:"spec"`
	Status     tokenReviewStatus `json:"status,omitzero"`
}

type tokenReviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences"`
}

type tokenReviewStatus struct {
	Authenticated bool     `json:"authenticated"`
	Audiences     []string `json:"audiences"`
	User          struct {
		Username string              `json:"username"`
		UID      string              `json:"uid"`
		Groups   []string            `json:"groups"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
}

// accessReview is what is used of a SubjectAccessReview of authorization.k8s.io/v1.
type accessReview struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Spec       accessReviewSpec `json:"spec"`
	Status     struct {
		Allowed bool `json:"allowed"`
	} `json:"status,omitzero"`
}

type accessReviewSpec struct {
	NonResource struct {
		Path string `json:"path"`
		Verb string `json:"verb"`
	} `json:"nonResourceAttributes"`
	User   string              `json:"user"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

// Review has the API server say whose a token for Audience is, and whether that user may get a
// path that is no resource. The user is empty for an invalid token.
func (s *Source) Review(ctx context.Context, token, path string) (user string, allowed bool, err error) {
	who := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview", Spec: tokenReviewSpec{token, []string{Audience}}}
	if err := s.review(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &who); err != nil {
		return "", false, err
	}
	// A server that knows no audiences leaves them out: then the token is one of its own.
	if !who.Status.Authenticated || !slices.Contains(who.Status.Audiences, Audience) || who.Status.User.Username == "" {
		return "", false, nil
	}
	of := who.Status.User
	may := accessReview{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview", Spec: accessReviewSpec{User: of.Username, UID: of.UID, Groups: of.Groups, Extra: of.Extra}}
	may.Spec.NonResource.Path, may.Spec.NonResource.Verb = path, "get"
	err = s.review(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &may)
	return of.Username, may.Status.Allowed, err
}

// review has the server complete a document.
func (s *Source) review(ctx context.Context, path string, doc any) error {
	text, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	answer, err := s.reviews.Post().AbsPath(path).MaxRetries(0).
		SetHeader("Content-Type", kruntime.ContentTypeJSON).SetHeader("Accept", kruntime.ContentTypeJSON).
		Body(text).Do(ctx).Raw()
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; Tandem's role needs create on tokenreviews of authentication.k8s.io and subjectaccessreviews of authorization.k8s.io, as value kubectl.enabled of the chart grants", err)
	case err != nil:
		return fmt.Errorf("checking a token: %w", err)
	}
	return json.Unmarshal(answer, doc)
}

// ClientMetrics makes client-go count its requests under the names that all of
// Kubernetes' components use (component-base's restclient), and returns the
// collectors to register. client-go takes its hooks once in a process, so every
// call returns the same collectors.
//
// The labels are bounded: verbs, codes, and the API servers of one
// configuration.
func ClientMetrics() []prometheus.Collector { return clientMetrics() }

var clientMetrics = sync.OnceValue(newClientMetrics)

func newClientMetrics() []prometheus.Collector {
	latency := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	size := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216} // 64 B to 16 MiB
	hour, day := time.Hour.Seconds(), 24*time.Hour.Seconds()
	ages := []float64{hour / 6, hour / 2, hour, 4 * hour, day, 7 * day, 30 * day, 90 * day, 180 * day, 360 * day, 1440 * day}

	requests := distribution("request_duration_seconds", "Request latency in seconds.", latency, "verb", "host")
	waits := distribution("rate_limiter_duration_seconds", "Client-side rate limiter latency in seconds.", latency, "verb", "host")
	sent := distribution("request_size_bytes", "Request size in bytes.", size, "verb", "host")
	received := distribution("response_size_bytes", "Response size in bytes.", size, "verb", "host")
	results := count("requests_total", "Requests by HTTP status.", "code", "method", "host")
	retries := count("request_retries_total", "Request retries by HTTP status.", "code", "verb", "host")
	calls := count("exec_plugin_call_total", "Calls of an exec credential plugin.", "code", "call_status")
	rotation := prometheus.NewHistogram(histogram("exec_plugin_certificate_rotation_age", "Age in seconds of an exec plugin's client certificate when it was rotated.", ages))
	expiry := &expiry{}
	transports := prometheus.NewGauge(prometheus.GaugeOpts{Name: "rest_client_transport_cache_entries", Help: "Entries in the transport cache."})
	created := count("transport_create_calls_total", "Transport lookups by result.", "result")
	reloads := count("transport_ca_reload_total", "CA reloads by result and reason.", "result", "reason")
	rotated := prometheus.NewCounter(prometheus.CounterOpts{Name: "rest_client_transport_cert_rotation_gc_calls_total", Help: "Certificate rotations stopped together with their transport."})
	dropped := count("transport_cache_gc_calls_total", "Transports garbage-collected, by result.", "result")

	metrics.Register(metrics.RegisterOpts{
		ClientCertExpiry:             expiry,
		ClientCertRotationAge:        observer{rotation},
		RequestLatency:               byURL{requests},
		RateLimiterLatency:           byURL{waits},
		RequestSize:                  byHost{sent},
		ResponseSize:                 byHost{received},
		RequestResult:                result{results},
		RequestRetry:                 result{retries},
		ExecPluginCalls:              pluginCalls{calls},
		TransportCacheEntries:        entries{transports},
		TransportCreateCalls:         counter{created},
		TransportCAReloads:           reload{reloads},
		TransportCertRotationGCCalls: rotations{rotated},
		TransportCacheGCCalls:        counter{dropped},
	})
	return []prometheus.Collector{
		requests, waits, sent, received, results, retries, calls, rotation, expiry.collector(), transports, created, reloads, rotated, dropped,
	}
}

func distribution(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(histogram(name, help, buckets), labels)
}

// histogram has the buckets of Kubernetes' components, and is a native histogram for those
// who read that, with their resolution.
func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: "rest_client_" + name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
	}
}

func count(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rest_client_" + name, Help: help}, labels)
}

// The adapters: client-go's hooks in terms of Prometheus.

type byURL struct{ *prometheus.HistogramVec }

func (m byURL) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	m.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

type byHost struct{ *prometheus.HistogramVec }

func (m byHost) Observe(_ context.Context, verb, host string, size float64) {
	m.WithLabelValues(verb, host).Observe(size)
}

type result struct{ *prometheus.CounterVec }

func (m result) Increment(_ context.Context, code, method, host string) {
	m.WithLabelValues(code, method, host).Inc()
}

func (m result) IncrementRetry(ctx context.Context, code, method, host string) {
	m.Increment(ctx, code, method, host)
}

type pluginCalls struct{ *prometheus.CounterVec }

func (m pluginCalls) Increment(code int, status string) {
	m.WithLabelValues(strconv.Itoa(code), status).Inc()
}

type observer struct{ prometheus.Histogram }

func (m observer) Observe(d time.Duration) { m.Histogram.Observe(d.Seconds()) }

type entries struct{ prometheus.Gauge }

func (m entries) Observe(n int) { m.Set(float64(n)) }

type counter struct{ *prometheus.CounterVec }

func (m counter) Increment(result string) { m.WithLabelValues(result).Inc() }

type reload struct{ *prometheus.CounterVec }

func (m reload) Increment(result, reason string) { m.WithLabelValues(result, reason).Inc() }

type rotations struct{ prometheus.Counter }

func (m rotations) Increment() { m.Inc() }

// expiry is when the first of the credential plugin's certificates expires.
type expiry struct{ at atomic.Pointer[time.Time] }

// Set implements client-go's ExpiryMetric; nil is for no certificate.
func (e *expiry) Set(at *time.Time) { e.at.Store(at) }

func (e *expiry) collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rest_client_exec_plugin_ttl_seconds",
		Help: "Time until the first exec plugin certificate expires, negative after expiry; +Inf without one.",
	}, func() float64 {
		if at := e.at.Load(); at != nil {
			return time.Until(*at).Seconds()
		}
		return math.Inf(1)
	})
}
