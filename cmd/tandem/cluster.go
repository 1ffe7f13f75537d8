// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/platform"
)

// How kubectl tandem reaches the tandem of a node: a request to its control socket (package platform) is carried
//
//	                ┌─ proxy ─▶ API server ─▶ pods/proxy ─▶ metrics address: /status, /query/ ─ a token is reviewed
//	carrier (a pod) ┤
//	                └─ exec ──▶ API server ─▶ pods/exec ─▶ kubelet ─▶ tandem control ─▶ control socket ─ root of the pod
//
// Where the proxy does not reach the pod, exec follows: a firewall of the node lets the kubelet's port pass.
//
// Answers are untrusted: any pod may have tandem's labels. They are bounded in size and time, and no address or
// redirect in them is followed.

// cluster reaches the tandems of a cluster.
type cluster struct {
	rules                        *clientcmd.ClientConfigLoadingRules
	overrides                    clientcmd.ConfigOverrides
	namespace, account, selector string
	port                         int
	timeout                      time.Duration
	via                          string

	node  string // --node: the only one to ask
	all   bool   // --all-nodes
	scope string // -n of verbs about a connection

	unreached sync.Map // when the proxy did not reach a pod, by name
}

func newCluster() *cluster {
	return &cluster{rules: clientcmd.NewDefaultClientConfigLoadingRules(), via: viaAuto}
}

// The ways to a pod: the values of --via.
const (
	viaAuto  = "auto"
	viaProxy = "proxy"
	viaExec  = "exec"
)

// session is access to a cluster's API server, and to the tandems behind it.
type session struct {
	*http.Client
	config *rest.Config // of that
	base   *url.URL
	scope  string // the namespace of what is named without one
	name   string // of the cluster: the context, else the address

	token  string    // for tandems, by the proxy; empty for exec
	chosen time.Time // that
}

// The bounds of one request.
const (
	maxAsked      = 8         // nodes
	maxPods       = 16 << 20  // bytes of a page of the list of pods
	maxPages      = 200       // of them
	maxError      = 4096      // bytes of an answer that is an error
	maxToken      = 64 << 10  // bytes of the answer with a token
	maxNode       = 256 << 20 // bytes of the answer of a node
	maxHeader     = 64 << 10  // bytes before it
	maxParameters = 8 << 10   // bytes of a question that the proxy carries: it is in the path
)

// open opens access to the API server.
func (k *cluster) open() (to session, err error) {
	kubeconfig := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, &k.overrides)
	c, err := kubeconfig.ClientConfig()
	if err != nil {
		return to, fmt.Errorf("kubeconfig: %w", err)
	}
	if to.scope, _, err = kubeconfig.Namespace(); err != nil {
		return to, fmt.Errorf("kubeconfig: %w", err)
	}
	to.scope = cmp.Or(k.scope, to.scope)
	to.config = c
	if to.Client, err = rest.HTTPClientFor(c); err != nil {
		return to, err
	}
	// The client adds the user's credentials to every request, to whatever host: a
	// redirect is an answer like others.
	to.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if to.base, _, err = rest.DefaultServerUrlFor(c); err != nil {
		return to, err
	}
	raw, _ := kubeconfig.RawConfig() // a cluster can be reached without one: from a pod
	to.name = cmp.Or(k.overrides.CurrentContext, raw.CurrentContext, to.base.Host)
	return to, nil
}

// choose decides the way to the pods: the proxy where there is the account whose tokens tandems take, else exec,
// which needs no configuration. Of a session that lasts it renews the token: until there is a new one, the old one is
// used as long as it is good.
func (k *cluster) choose(ctx context.Context, to *session) error {
	if k.via == viaExec || time.Since(to.chosen) < renewAfter {
		return nil
	}
	now := time.Now()
	token, err := k.newToken(ctx, *to)
	switch {
	case err == nil:
		to.token, to.chosen = token, now
	case ctx.Err() != nil:
		return ctx.Err()
	case to.token != "" && now.Sub(to.chosen) < goodFor: // the next time, then
	case k.via == viaProxy:
		to.token = ""
		return err
	default:
		to.token, to.chosen = "", now
	}
	return nil
}

// pod holds the fields that are read of a Pod.
type pod struct {
	Metadata struct{ Name, DeletionTimestamp string }
	Spec     struct {
		NodeName     string
		HostNetwork  bool
		NodeSelector map[string]string
		Containers   []struct{ Name string }
	}
	Status struct {
		Phase  string
		PodIPs []struct{ IP string }
	}
}

// gone reports whether a pod ends or has ended.
func (p *pod) gone() bool {
	return p.Metadata.DeletionTimestamp != "" || p.Status.Phase == "Failed" || p.Status.Phase == "Succeeded"
}

// pods lists the pods of tandem that have a node: that of one node where it is named. One that another one of its node
// replaces is left out.
func (k *cluster) pods(ctx context.Context, to session, node string) (all []pod, err error) {
	query := url.Values{"labelSelector": {k.selector}, "limit": {"500"}}
	if node != "" {
		query.Set("fieldSelector", "spec.nodeName="+node)
	}
	for range maxPages {
		var list struct {
			Metadata struct{ Continue string }
			Items    []pod
		}
		if err := get(ctx, to.Client, to.base.JoinPath("api/v1/namespaces", k.namespace, "pods"), query, maxPods, &list); err != nil {
			return nil, fmt.Errorf("list the pods of tandem in namespace %s: %w", k.namespace, err)
		}
		for _, p := range list.Items {
			if p.Spec.NodeName != "" && (node == "" || p.Spec.NodeName == node) {
				all = append(all, p)
			}
		}
		if list.Metadata.Continue == "" {
			break
		}
		query.Set("continue", list.Metadata.Continue)
	}
	alive := map[string]bool{}
	for i := range all {
		alive[all[i].Spec.NodeName] = alive[all[i].Spec.NodeName] || !all[i].gone()
	}
	all = slices.DeleteFunc(all, func(p pod) bool { return p.gone() && alive[p.Spec.NodeName] })
	switch {
	case len(all) == 0 && node != "":
		return nil, fmt.Errorf("no pod of tandem on node %q, in namespace %s with labels %s", node, k.namespace, k.selector)
	case len(all) == 0:
		return nil, fmt.Errorf("no pods of tandem in namespace %s with labels %s", k.namespace, k.selector)
	}
	slices.SortStableFunc(all, func(a, b pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	return all, nil
}

// names lists the first objects of a kind, whose keys lack that.
func (to session) names(ctx context.Context, path string) (all []model.Key, err error) {
	var list struct {
		Items []struct{ Metadata model.Key }
	}
	err = get(ctx, to.Client, to.base.JoinPath(path), url.Values{"limit": {"500"}}, maxPods, &list)
	for _, item := range list.Items {
		all = append(all, item.Metadata)
	}
	return all, err
}

// find returns a pod of any program, which has a node.
func (to session) find(ctx context.Context, name string) (p pod, err error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/%") { // which would be of the path
		return p, usageError{fmt.Errorf("pod/%s: want pod/NAME, of the namespace that -n names", name)}
	}
	if err := get(ctx, to.Client, to.base.JoinPath("api/v1/namespaces", to.scope, "pods", name), nil, maxPods, &p); err != nil {
		return p, fmt.Errorf("pod %s/%s: %w", to.scope, name, err)
	}
	if p.Spec.NodeName == "" {
		return p, fmt.Errorf("pod %s/%s has no node yet", to.scope, name)
	}
	return p, nil
}

// The life of a token.
const (
	tokenSeconds = 600 // the shortest that the API allows
	renewAfter   = tokenSeconds / 2 * time.Second
	goodFor      = (tokenSeconds - 60) * time.Second // for a request that begins now, and for clocks that differ
)

// newToken makes a token that is good for tandems and for nothing else: any pod with
// their labels gets it, and it crosses the network unencrypted.
func (k *cluster) newToken(ctx context.Context, to session) (string, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"audiences": []string{watch.Audience}, "expirationSeconds": tokenSeconds},
	})
	if err != nil {
		return "", err
	}
	at := to.base.JoinPath("api/v1/namespaces", k.namespace, "serviceaccounts", k.account, "token")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	var answer struct{ Status struct{ Token string } }
	if err := fetch(to.Client, req, maxToken, func(r io.Reader) error { return json.NewDecoder(r).Decode(&answer) }); err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s, which value kubectl.enabled of the chart makes: %w", k.namespace, k.account, err)
	}
	if answer.Status.Token == "" {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: the API server answers without one", k.namespace, k.account)
	}
	return answer.Status.Token, nil
}

// get reads a JSON document of so many bytes at most.
func get(ctx context.Context, client *http.Client, at *url.URL, query url.Values, limit int64, answer any) error {
	to := *at
	to.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return err
	}
	return fetch(client, req, limit, func(r io.Reader) error { return json.NewDecoder(r).Decode(answer) })
}

// fetch has an answer of so many bytes at most read.
func fetch(client *http.Client, req *http.Request, limit int64, read func(io.Reader) error) error {
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
		return apiError(res.StatusCode, text)
	}
	return read(&allowance{Reader: res.Body, limit: limit})
}

// allowance is a reader of which so many bytes are read.
type allowance struct {
	io.Reader
	limit, read int64
}

func (a *allowance) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p[:min(int64(len(p)), a.limit+1-a.read)])
	if a.read += int64(n); a.read > a.limit {
		return 0, fmt.Errorf("answer larger than %d bytes", a.limit)
	}
	return n, err
}

// apiError is the error of an answer: the message of Kubernetes' Status where it is
// one, and what to do.
func apiError(code int, text []byte) error {
	var said struct{ Kind, Message string }
	if json.Unmarshal(text, &said) != nil || said.Message == "" {
		said.Message = strings.TrimSpace(string(text))
	}
	message := http.StatusText(code) + ": " + said.Message
	switch {
	case code == http.StatusForbidden && said.Kind == "Status": // of the API server, not of the pod
		message += "; the user needs list of pods there, and get of pods/proxy with create of serviceaccounts/token, or get and create of pods/exec"
	case code == http.StatusServiceUnavailable, code == http.StatusBadGateway:
		message += "; does tandem serve its status on the pod's address (metricsBindAddress 0.0.0.0:10249), and may it check tokens (value kubectl.enabled of the chart)? --via exec needs neither"
	}
	return errors.New(message)
}

// unreached reports whether an answer is the API server's own: it has no connection to the pod.
func unreached(code int, text []byte) bool {
	var said struct{ Kind string }
	own := json.Unmarshal(text, &said) == nil && said.Kind == "Status" || bytes.Contains(text, []byte("error trying to reach service"))
	return own && slices.Contains([]int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, code)
}

// carrier takes requests to the control socket of a pod's tandem, or, by the proxy, to the pages with the same answers.
// It implements http.RoundTripper.
type carrier struct {
	*cluster
	session
	pod
	limit int64 // bytes of an answer
}

// RoundTrip implements http.RoundTripper. The time of a request ends with the reading of its answer.
func (c carrier) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := c.deadline().limit(req.Context())
	res, err := c.carry(req.WithContext(ctx))
	if err != nil {
		defer cancel()
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	res.Body = &answerBody{ctx, res.Body, cancel}
	return res, nil
}

// carry takes a request by the way that is for it. Where the API server does not reach the pod, as with a firewall of a node, exec
// follows, unless the proxy is asked for: it goes through the kubelet.
func (c carrier) carry(req *http.Request) (*http.Response, error) {
	switch {
	case c.token == "" || c.via != viaProxy && !proxies(req):
		return c.executed(req)
	case c.via == viaProxy:
		return c.proxied(req)
	}
	if at, known := c.unreached.Load(c.Metadata.Name); known && time.Since(at.(time.Time)) < renewAfter {
		return c.executed(req)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	late := unreachedError{fmt.Errorf("no answer by the proxy of pods within %s", c.timeout/2)}
	timer := time.AfterFunc(c.timeout/2, func() { cancel(late) })
	res, err := c.proxied(req.WithContext(ctx))
	if inTime := timer.Stop(); err == nil && inTime {
		return res, nil // its time ends with that of the request
	}
	if err == nil {
		_ = res.Body.Close()
	}
	err = cmp.Or(context.Cause(ctx), err)
	cancel(nil)
	if !errors.As(err, new(unreachedError)) {
		return nil, err
	}
	return c.instead(req, err)
}

// instead executes what the proxy has not carried, and remembers that.
func (c carrier) instead(req *http.Request, why error) (*http.Response, error) {
	if req.ContentLength > 0 {
		if req.GetBody == nil {
			return nil, why
		}
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		req.Body = body
	}
	c.unreached.Store(c.Metadata.Name, time.Now())
	res, err := c.executed(req)
	if err != nil {
		return nil, fmt.Errorf("%w; and %w", why, err)
	}
	return res, nil
}

// unreachedError is that of a connection to a pod, which has not answered.
type unreachedError struct{ error }

func (e unreachedError) Unwrap() error { return e.error }

// deadline is how long an answer is waited for, and the error after that.
type deadline struct {
	after time.Duration
	late  error
}

// deadline is that of the user.
func (k *cluster) deadline() deadline {
	return deadline{k.timeout, fmt.Errorf("no answer within %s (--timeout)", k.timeout)}
}

func (d deadline) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d.after, d.late)
}

// answerBody is the body of an answer, whose time ends with it.
type answerBody struct {
	ctx context.Context
	io.ReadCloser
	cancel func()
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = cmp.Or(context.Cause(b.ctx), err)
	}
	return n, err
}

func (b *answerBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// proxies reports whether the proxy can carry a request: what only reads, with few parameters.
func proxies(req *http.Request) bool {
	return req.URL.Path == "/status" || strings.HasPrefix(req.URL.Path, "/query/") && req.ContentLength <= maxParameters
}

// proxied carries a request through the API server's proxy of pods, to the metrics address.
func (c carrier) proxied(req *http.Request) (*http.Response, error) {
	if !proxies(req) {
		return nil, errors.New("the proxy of pods does not carry this question: --via exec does")
	}
	query := req.URL.Query()
	if req.ContentLength > 0 {
		parameters, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		query.Set(platform.QueryParameter, string(parameters))
	}
	at := c.base.JoinPath("api/v1/namespaces", c.namespace, "pods", c.Metadata.Name+":"+strconv.Itoa(c.port), "proxy", req.URL.Path)
	at.RawQuery = query.Encode()
	to, err := http.NewRequestWithContext(req.Context(), http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	to.Header.Set("Accept", req.Header.Get("Accept"))
	to.Header.Set(health.TokenHeader, c.token)
	res, err := c.Do(to)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusConflict { // tandem's own refusal
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
		if unreached(res.StatusCode, text) {
			return nil, unreachedError{apiError(res.StatusCode, text)}
		}
		if refused := question.Refusal(strings.TrimSpace(string(text))); errors.Is(refused, question.ErrOlder) { // the pod's own: the API server knows the path
			return nil, refused
		}
		return nil, apiError(res.StatusCode, text)
	}
	res.Body = bodyOf(&allowance{Reader: res.Body, limit: c.limit}, res.Body.Close)
	return res, nil
}

// bodyOf is a body that is read and closed in different ways.
func bodyOf(r io.Reader, closed func() error) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{r, closing(closed)}
}

type closing func() error

func (c closing) Close() error { return c() }

// controlVerb is the verb that exec runs in a pod. Programs of other versions know it by this name.
const controlVerb = "control"

// executed carries a request through a tandem that the API server runs in the pod, to the control socket there.
func (c carrier) executed(req *http.Request) (*http.Response, error) {
	program, container := "tandem", c.Spec.Containers // in the images' PATH (ci/dist)
	if c.Spec.NodeSelector["kubernetes.io/os"] == "windows" {
		program = "tandem.exe"
	}
	query := url.Values{"command": {program, controlVerb}, "stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"}}
	for _, one := range container {
		if len(container) == 1 || one.Name == "tandem" {
			query.Set("container", one.Name)
		}
	}
	at := c.base.JoinPath("api/v1/namespaces", c.namespace, "pods", c.Metadata.Name, "exec")
	at.RawQuery = query.Encode()
	s, err := dialStream(req.Context(), c.config, at)
	if err != nil {
		return nil, fmt.Errorf("exec in pod %s: %w", c.Metadata.Name, err)
	}
	written := make(chan struct{})
	go func() { // the answer may come before all is written
		defer close(written)
		_ = req.Write(s) // what fails here, ends the reading
	}()
	end := func() error {
		err := s.Close()
		<-written
		return err
	}
	in := &allowance{Reader: s, limit: maxHeader}
	res, err := http.ReadResponse(bufio.NewReader(in), req)
	if err != nil {
		_ = end()
		return nil, fmt.Errorf("exec in pod %s: %w", c.Metadata.Name, err)
	}
	in.limit += c.limit
	body := res.Body
	res.Body = bodyOf(body, end)
	return res, nil
}

// stream is the standard input and output of a program in a pod: channels of a WebSocket, in the form that every API
// server has. Of what is read only the standard output is kept, and the beginning of the rest.
type stream struct {
	*websocket.Conn
	message io.Reader    // of the standard output, which is being read; nil between two
	said    bytes.Buffer // on the standard error
	ended   bytes.Buffer // a Status
}

// What a stream consists of: each message begins with its channel.
const (
	streamProtocol = "v4.channel.k8s.io"

	channelIn, channelOut, channelErr, channelStatus = 0, 1, 2, 3

	maxMessage = 16 << 10 // bytes of one that is written
)

// dialStream runs what a URL of the API server names.
func dialStream(ctx context.Context, server *rest.Config, at *url.URL) (*stream, error) {
	secure, err := rest.TLSConfigFor(server)
	if err != nil {
		return nil, err
	}
	d := dialer{connect: new(net.Dialer).DialContext, Dialer: websocket.Dialer{
		Subprotocols: []string{streamProtocol}, TLSClientConfig: secure, Proxy: server.Proxy,
		WriteBufferSize: 1 + maxMessage, // a message is one frame: the API server takes each frame for a message
	}}
	if d.Proxy == nil {
		d.Proxy = http.ProxyFromEnvironment
	}
	credentials, err := rest.HTTPWrappersForConfig(server, &d)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := credentials.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if d.conn == nil {
		text, _ := io.ReadAll(res.Body) // the beginning
		return nil, apiError(res.StatusCode, text)
	}
	if d.conn.Subprotocol() != streamProtocol {
		_ = d.conn.Close()
		return nil, errors.New("the API server does not answer in the form " + streamProtocol)
	}
	return &stream{Conn: d.conn}, nil
}

// dialer is the transport of one request, which becomes a WebSocket.
type dialer struct {
	websocket.Dialer
	connect func(ctx context.Context, network, address string) (net.Conn, error)
	conn    *websocket.Conn // nil where the answer is another
}

// RoundTrip implements http.RoundTripper. The connection is closed when the request's context ends.
func (d *dialer) RoundTrip(req *http.Request) (res *http.Response, err error) {
	// Without its deadline, which a connection may notice before the context does.
	ctx, cancel := context.WithCancel(context.WithoutCancel(req.Context()))
	context.AfterFunc(req.Context(), cancel)
	d.NetDialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.connect(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
	at := *req.URL
	at.Scheme = map[string]string{"http": "ws", "https": "wss"}[at.Scheme]
	if d.conn, res, err = d.DialContext(ctx, at.String(), req.Header); errors.Is(err, websocket.ErrBadHandshake) {
		return res, nil
	}
	return res, err
}

// Write writes to the standard input.
func (s *stream) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, maxMessage) {
		if err := s.WriteMessage(websocket.BinaryMessage, append([]byte{channelIn}, part...)); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// Read reads the standard output. Its end is an error where the program failed.
func (s *stream) Read(p []byte) (int, error) {
	for {
		if s.message == nil {
			if err := s.next(); err != nil {
				return 0, s.end(err)
			}
			continue
		}
		n, err := s.message.Read(p)
		if errors.Is(err, io.EOF) {
			s.message = nil
			continue
		}
		if err != nil {
			err = s.end(err)
		}
		return n, err
	}
}

// next reads the beginning of a message, and keeps that of another channel than the standard output.
func (s *stream) next() error {
	_, message, err := s.NextReader()
	if err != nil {
		return err
	}
	var channel [1]byte
	if _, err := io.ReadFull(message, channel[:]); errors.Is(err, io.EOF) {
		return nil // it is empty
	} else if err != nil {
		return err
	}
	switch channel[0] {
	case channelOut:
		s.message = message
	case channelErr:
		err = keep(&s.said, message)
	case channelStatus:
		err = keep(&s.ended, message)
	}
	return err
}

// keep appends the beginning of a message.
func keep(kept *bytes.Buffer, message io.Reader) error {
	_, err := io.CopyN(kept, message, int64(maxError-kept.Len()))
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// end is the result of a program whose output has ended: io.EOF, or why it failed.
func (s *stream) end(err error) error {
	var status struct{ Status, Message string }
	if json.Unmarshal(s.ended.Bytes(), &status) == nil && status.Status == "Failure" {
		text := strings.TrimPrefix(strings.TrimSpace(s.said.String()), "tandem: ")
		return errors.New(cmp.Or(text, status.Message))
	}
	if s.ended.Len() > 0 || websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseNoStatusReceived) {
		return io.EOF
	}
	return err
}

// newControl is what exec runs in a pod: it connects its standard input and output with the control socket there,
// which hears root.
func newControl() *cobra.Command {
	return &cobra.Command{
		Use: controlVerb, Hidden: true, Args: noArgs,
		Short: "Connect the standard input and output with the control socket of the running tandem",
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := platform.DialControl(cmd.Context())
			if err != nil {
				return err
			}
			defer conn.Close()
			go func() { // until the process ends
				_, _ = io.Copy(conn, cmd.InOrStdin())
				_ = conn.Close() // who asked has gone
			}()
			if _, err = io.Copy(cmd.OutOrStdout(), conn); errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		},
	}
}
