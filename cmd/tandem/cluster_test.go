// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/websocket"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/wire"
	"github.com/tandem-proxy/tandem/platform"
)

// worldOfNodes is an API server with a tandem on each of some nodes, which answers from a snapshot, by the proxy of
// pods and by exec.
type worldOfNodes struct {
	*testing.T
	kubeconfig string
	account    bool                    // there is the one whose tokens tandems take
	nodes      map[string]http.Handler // by name: the control socket
	firewall   http.HandlerFunc        // what the proxy answers about b, which it does not reach; nil where it does

	mu    sync.Mutex
	asked map[string]int // requests by node and way
	under int            // now
	most  int            // at a time
}

// newWorld starts an API server with nodes.
func newWorld(t *testing.T, nodes map[string]http.Handler) *worldOfNodes {
	t.Helper()
	w := &worldOfNodes{T: t, nodes: nodes, asked: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/namespaces/kube-system/pods", w.pods)
	mux.HandleFunc("GET /api/v1/namespaces/shop/pods/{name}", w.pod)
	mux.HandleFunc("POST /api/v1/namespaces/kube-system/serviceaccounts/tandem-status/token", w.token)
	mux.HandleFunc("GET /api/v1/namespaces/kube-system/pods/{pod}/proxy/{path...}", w.proxy)
	mux.HandleFunc("GET /api/v1/namespaces/kube-system/pods/{pod}/exec", w.run)
	mux.HandleFunc("GET /api/v1/services", func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, `{"items":[{"metadata":{"namespace":"default","name":"web"}}]}`)
	})
	mux.HandleFunc("GET /api/v1/namespaces/shop/pods", func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, `{"items":[{"metadata":{"namespace":"shop","name":"web-0"}}]}`)
	})
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer the-user" {
			http.Error(rw, `{"kind":"Status","message":"who are you?"}`, http.StatusForbidden)
			return
		}
		mux.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	w.kubeconfig = filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: the-user}}, {name: stranger, user: {token: x}}]
contexts: [{name: c, context: {cluster: c, user: u}}, {name: shop, context: {cluster: c, user: u, namespace: shop}}, {name: other, context: {cluster: c, user: stranger}}]
`, server.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	if err := os.WriteFile(w.kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *worldOfNodes) pods(rw http.ResponseWriter, r *http.Request) {
	only, one := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
	var items []string
	for name := range w.nodes {
		if !one || only == name {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":"tandem-%s"},"spec":{"nodeName":%q,"containers":[{"name":"mesh"},{"name":"tandem"}]}}`, name, name))
		}
	}
	if w.nodes["a"] != nil && (!one || only == "a") { // what an update and an eviction leave behind
		items = append(items,
			`{"metadata":{"name":"old","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"a"}}`,
			`{"metadata":{"name":"evicted"},"spec":{"nodeName":"a"},"status":{"phase":"Failed"}}`)
	}
	fmt.Fprintf(rw, `{"items":[%s]}`, strings.Join(items, ","))
}

func (w *worldOfNodes) pod(rw http.ResponseWriter, r *http.Request) {
	switch r.PathValue("name") {
	case "web-0":
		fmt.Fprint(rw, `{"metadata":{"name":"web-0"},"spec":{"nodeName":"b"},"status":{"podIPs":[{"ip":"10.244.1.7"},{"ip":"fd00::7"}]}}`)
	case "agent":
		fmt.Fprint(rw, `{"metadata":{"name":"agent"},"spec":{"nodeName":"a","hostNetwork":true},"status":{"podIPs":[{"ip":"192.0.2.1"}]}}`)
	case "pending":
		fmt.Fprint(rw, `{"metadata":{"name":"pending"},"spec":{}}`)
	default:
		rw.WriteHeader(http.StatusNotFound)
		fmt.Fprint(rw, `{"kind":"Status","message":"pods \"nobody\" not found"}`)
	}
}

func (w *worldOfNodes) token(rw http.ResponseWriter, _ *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.account {
		http.Error(rw, `{"kind":"Status","message":"serviceaccounts \"tandem-status\" not found"}`, http.StatusNotFound)
		return
	}
	fmt.Fprint(rw, `{"status":{"token":"for tandems"}}`)
}

// begin counts a request to a node, until done is called.
func (w *worldOfNodes) begin(pod, way string) (node http.Handler, done func()) {
	name := strings.TrimPrefix(pod, "tandem-")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[name+" "+way]++
	w.under++
	w.most = max(w.most, w.under)
	return w.nodes[name], func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.under--
	}
}

func (w *worldOfNodes) proxy(rw http.ResponseWriter, r *http.Request) {
	node, done := w.begin(strings.TrimSuffix(r.PathValue("pod"), ":10249"), viaProxy)
	defer done()
	if w.firewall != nil && r.PathValue("pod") == "tandem-b:10249" {
		w.firewall(rw, r)
		return
	}
	if r.Header.Get("X-Tandem-Token") != "for tandems" {
		http.Error(rw, "a token is needed", http.StatusUnauthorized)
		return
	}
	r.URL.Path = "/" + r.PathValue("path")
	node.ServeHTTP(rw, r)
}

// run is exec: an implementation of WebSocket that is not ours, and the control socket behind it. The server pings, and
// splits what it sends.
func (w *worldOfNodes) run(rw http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if got := fmt.Sprint(q["command"], q["container"], q["stdin"], q["stdout"], q["stderr"]); got != "[tandem control] [tandem] [true] [true] [true]" {
		w.Errorf("exec of %s", got)
	}
	node, done := w.begin(r.PathValue("pod"), viaExec)
	defer done()
	if node == nil { // no rights, or no such pod
		rw.WriteHeader(http.StatusForbidden)
		fmt.Fprint(rw, `{"kind":"Status","message":"no exec for you"}`)
		return
	}
	websocket.Server{
		Handshake: func(c *websocket.Config, _ *http.Request) error {
			if !slices.Contains(c.Protocol, "v4.channel.k8s.io") {
				return errors.New("unknown protocol")
			}
			c.Protocol = []string{"v4.channel.k8s.io"}
			return nil
		},
		Handler: func(ws *websocket.Conn) {
			ws.PayloadType = websocket.BinaryFrame
			if _, broken := node.(brokenProgram); broken {
				fmt.Fprint(ws, "\x02tandem: no tandem runs on this node \x1b[31m")
				fmt.Fprint(ws, "\x03"+`{"status":"Failure","message":"command terminated with exit code 1"}`)
				return
			}
			client, server := net.Pipe()
			defer client.Close()
			go func() { // the standard input
				defer client.Close()
				for {
					var message []byte
					if websocket.Message.Receive(ws, &message) != nil || len(message) == 0 || message[0] != 0 {
						return
					}
					if _, err := client.Write(message[1:]); err != nil {
						return
					}
				}
			}()
			go serveOne(server, node)
			fmt.Fprint(ws, "\x02a warning")
			if ping, err := ws.NewFrameWriter(websocket.PingFrame); err == nil {
				_, _ = ping.Write([]byte("alive?"))
			}
			buffer := make([]byte, 30_000)
			for {
				n, err := client.Read(buffer)
				if n > 0 {
					if _, err := ws.Write(append([]byte{1}, buffer[:n]...)); err != nil {
						return
					}
				}
				if err != nil {
					break
				}
			}
			fmt.Fprint(ws, "\x03"+`{"status":"Success"}`)
		},
	}.ServeHTTP(rw, r)
}

// serveOne serves a single connection.
func serveOne(conn net.Conn, h http.Handler) {
	l := &oneListener{conn: conn, closed: make(chan struct{})}
	server := http.Server{Handler: h, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed || s == http.StateHijacked {
			l.Close()
		}
	}}
	_ = server.Serve(l)
}

type oneListener struct {
	conn   net.Conn
	given  atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	if l.given.CompareAndSwap(false, true) {
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}
func (l *oneListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *oneListener) Addr() net.Addr { return l.conn.LocalAddr() }

// brokenProgram is a pod whose program fails.
type brokenProgram struct{ http.Handler }

// nodeOf is the tandem of a node, which knows what manifests mean there.
func nodeOf(t *testing.T, name string, files map[string]string, edit func(*snapshot.File)) http.Handler {
	t.Helper()
	c := config.Default()
	c.NodeName, c.Mode, c.ClusterCIDRs = name, "nftables", []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	c.Manifests = folder(t, files)
	in, err := readFolder(t.Context(), &c)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	file := &snapshot.File{
		Header: snapshot.Header{Format: snapshot.Format, Version: "v1", System: "linux", Mode: "nftables", At: at, ReadAt: at, Config: c, Node: ownNode(in.Nodes, name)},
		Status: question.Status{Version: "v1", Node: name, Mode: "nftables", Healthy: true, Hash: "h1", At: at, Services: []question.Service{{Name: "default/web", State: "Programmed", Hash: "1"}}, Total: 1},
		Drift:  question.Drift{Node: name, Mode: "nftables", At: at, Looked: true, Now: []question.Drifted{}, Before: []question.Drifted{}},
		Top:    &question.Top{At: at, Mode: "nftables", Services: []question.TopService{{Service: "default/web", New: 7, Frontends: []question.TopAddress{}}}},
		History: history.Document{Total: 1, Entries: []history.Entry{
			{At: at, Kind: "Service", Verb: "added", Object: "default/web", Service: "default/web", Version: 5},
		}},
		Services: in.Services, Slices: in.Slices,
	}
	if edit != nil {
		edit(file)
	}
	d, _, err := platform.Replay(file)
	if err != nil {
		t.Fatal(err)
	}
	d.Seen = &monitor.Part{Begun: at, Next: 8, Events: []monitor.Event{
		{Number: 5, At: at, Namespace: "default", Service: "default/web", Port: "http", Protocol: "tcp", Client: "10.244.9.9:1000", Frontend: "10.96.0.10:80", Kind: "cluster IP", Verdict: "forward", Endpoint: "10.244.1.2:8080"},
		{Number: 6, At: at, Namespace: "shop", Service: "shop/db", Protocol: "tcp", Client: "10.244.9.9:1001", Frontend: "10.96.0.11:80", Kind: "cluster IP", Verdict: "reject", Why: "no endpoints"},
		{Number: 7, At: at, Namespace: "shop", LeftOut: 12},
	}}
	status := health.Status(func(context.Context) (func(question.Filter) any, error) {
		return func(only question.Filter) any { return question.StatusOf(d, only) }, nil
	})
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/snapshot" {
			_ = snapshot.Write(rw, file)
			return
		}
		if r.URL.Path == "/status" {
			status.ServeHTTP(rw, r)
			return
		}
		parameters, _ := io.ReadAll(r.Body)
		if len(parameters) == 0 {
			parameters = []byte(r.URL.Query().Get(platform.QueryParameter))
		}
		all := question.Questions()
		i := slices.IndexFunc(all, func(q question.Question) bool {
			called, _ := q.Called()
			return "/query/"+called == r.URL.Path
		})
		answer, err := all[i].Reply(r.Context(), parameters, func(context.Context, question.Needs) (*question.Document, error) { return d, nil })
		if err != nil {
			rw.WriteHeader(http.StatusConflict)
			fmt.Fprint(rw, err)
			return
		}
		kind := wire.Type(r.Header.Get("Accept"))
		rw.Header().Set("Content-Type", kind)
		last, _ := wire.Encode(kind, answer, func(part []byte) error { _, err := rw.Write(part); return err })
		_, _ = rw.Write(last)
	})
}

// nodeYAML is the Node object of a node of worldOfNodes.
func nodeYAML(name, number string) string {
	return strings.NewReplacer("NAME", name, "NUMBER", number).Replace("apiVersion: v1\nkind: Node\nmetadata: {name: NAME}\nspec: {podCIDR: 10.244.NUMBER.0/24, podCIDRs: [10.244.NUMBER.0/24]}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.NUMBER}]}\n")
}

// three is a world of three nodes that know the same.
func three(t *testing.T) *worldOfNodes {
	nodes := map[string]http.Handler{}
	for i, name := range []string{"a", "b", "c"} {
		nodes[name] = nodeOf(t, name, map[string]string{"web.yaml": webYAML, "node.yaml": nodeYAML(name, fmt.Sprint(i+1))}, nil)
	}
	return newWorld(t, nodes)
}

// askingVerbs are those that ask, with arguments.
func askingVerbs(t *testing.T) map[string][]string {
	return map[string][]string{
		"status": nil, "services": {"default/web"}, "explain": {"pod", "default/web:80"}, "trace": {"outside", "default/web:80"},
		"drift": nil, "history": {"default/web"}, "top": nil, "snapshot": nil, "plan": {"--manifests", folder(t, map[string]string{"web.yaml": webYAML})},
	}
}

// Every verb that asks the running tandem is there for a node of a cluster, and answers the same by both ways: the
// proxy of pods where a token can be made, and exec without any configuration.
func TestEveryAskingVerbIsForNodes(t *testing.T) {
	verbs := askingVerbs(t)
	root := newRoot()
	plugin, _, err := root.Find([]string{"kubectl"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range root.Commands() {
		f := c.Flags().Lookup("snapshot")
		asks := f != nil && c.Name() != "ui" || c.Name() == "snapshot" || c.Name() == monitorVerb
		has := slices.ContainsFunc(plugin.Commands(), func(k *cobra.Command) bool { return k.Name() == c.Name() && k.Flags().Lookup("node") != nil })
		if asks != has {
			t.Errorf("tandem %s asks: %t; kubectl tandem %s: %t", c.Name(), asks, c.Name(), has)
		}
		if _, tested := verbs[c.Name()]; asks != tested && c.Name() != monitorVerb { // TestKubectlMonitors
			t.Errorf("%s is not tested", c.Name())
		}
	}
	w := three(t)
	for name, args := range verbs {
		answers := map[string]string{}
		for _, account := range []bool{false, true} {
			w.account = account
			clear(w.asked)
			line := append([]string{name, "--node", "b", "--kubeconfig", w.kubeconfig}, args...)
			if name != "snapshot" {
				line = append(line, "-o", "json")
			}
			code, out, stderr := kubectl(t, line...)
			if code != exitOK || !strings.Contains(out, `"b"`) && name != "history" && name != "top" || out == "" {
				t.Errorf("%s: exit code %d\n%s%s", name, code, out, stderr)
			}
			way := map[bool]string{false: "b exec", true: "b proxy"}[account && name != "snapshot"]
			if len(w.asked) != 1 || w.asked[way] == 0 {
				t.Errorf("%s asked %v, want %s", name, w.asked, way)
			}
			answers[out] = way
		}
		if len(answers) != 1 {
			t.Errorf("%s: the ways give different answers: %v", name, answers)
		}
	}
}

// Where the API server does not reach a pod, as behind the firewall of a Windows node, exec follows: after its own error or its
// silence, once for a pod, and not after an answer of the pod.
func TestKubectlExecutesWhereTheProxyDoesNotReach(t *testing.T) {
	w := three(t)
	w.account = true
	status := func(code int, message string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(code)
			_ = json.NewEncoder(rw).Encode(map[string]string{"kind": "Status", "message": message})
		}
	}
	refused := status(http.StatusServiceUnavailable, "error trying to reach service: dial tcp 192.0.2.2:10249: connect: connection refused")
	for _, tt := range []struct {
		name     string
		firewall http.HandlerFunc
		line     string
		code     int
		want     string // in the output
		asked    map[string]int
	}{
		{"refused", refused, "services --node b", exitOK, "default/web", map[string]int{"b proxy": 1, "b exec": 1}},
		{"a question with parameters", refused, "explain --node b pod default/web:80", exitOK, "10.96.0.10:80/tcp on node b", map[string]int{"b proxy": 1, "b exec": 1}},
		{"text", func(rw http.ResponseWriter, _ *http.Request) {
			http.Error(rw, "error trying to reach service: EOF", http.StatusBadGateway)
		}, "services --node b", exitOK, "default/web", map[string]int{"b proxy": 1, "b exec": 1}},
		{"silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "services --node b --timeout 2s", exitOK, "default/web", map[string]int{"b proxy": 1, "b exec": 1}},
		{"one of all", refused, "services --all-nodes", exitOK, "3 nodes", map[string]int{"a proxy": 1, "b proxy": 1, "b exec": 1, "c proxy": 1}},
		{"the proxy is asked for", refused, "services --node b --via proxy", exitFailure, "connection refused", map[string]int{"b proxy": 1}},
		{"the pod answers", func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "busy", http.StatusServiceUnavailable) }, "services --node b", exitFailure, "busy", map[string]int{"b proxy": 1}},
		{"no rights", status(http.StatusForbidden, "no"), "services --node b", exitFailure, "pods/proxy", map[string]int{"b proxy": 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.firewall = tt.firewall
			clear(w.asked)
			code, out, stderr := kubectl(t, append(strings.Fields(tt.line), "--kubeconfig", w.kubeconfig)...)
			if code != tt.code || !strings.Contains(out+stderr, tt.want) || !maps.Equal(w.asked, tt.asked) {
				t.Errorf("exit code %d, asked %v, want %v: %s%s", code, w.asked, tt.asked, out, stderr)
			}
		})
	}
	w.firewall = refused
	clear(w.asked)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines := &reading{until: "left out", interrupt: func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.asked["b exec"] > 2 {
			cancel()
		}
	}}
	code := run(ctx, []string{"kubectl-tandem", "monitor", "--interval", "100ms", "--node", "b", "--kubeconfig", w.kubeconfig}, lines, io.Discard)
	if code != exitOK || w.asked["b proxy"] != 1 || w.asked["b exec"] < 3 {
		t.Errorf("exit code %d, asked %v: %s", code, w.asked, lines)
	}
	delete(w.nodes, "b")
	k := newCluster()
	k.rules.ExplicitPath, k.namespace, k.account, k.port, k.timeout = w.kubeconfig, "kube-system", "tandem-status", 10249, time.Minute
	to, err := k.open()
	if err == nil {
		err = k.choose(t.Context(), &to)
	}
	if err != nil {
		t.Fatal(err)
	}
	var gone pod
	gone.Metadata.Name, gone.Spec.Containers = "tandem-b", []struct{ Name string }{{"tandem"}}
	if _, err = platform.Ask(platform.Through(t.Context(), carrier{k, to, gone, maxEach}), question.ListServices(), question.ServicesRequest{}); err == nil ||
		!strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "no exec for you") {
		t.Errorf("neither way: %v", err)
	}
}

// reading is an output that is interrupted when it has a text.
type reading struct {
	strings.Builder
	until     string
	interrupt func()
}

func (r *reading) Write(b []byte) (int, error) {
	n, err := r.Builder.Write(b)
	if strings.Contains(r.String(), r.until) {
		r.interrupt()
	}
	return n, err
}

// Connections through a node are shown until they are interrupted, by both ways, and only those that are asked for.
func TestKubectlMonitors(t *testing.T) {
	w := three(t)
	for _, account := range []bool{false, true} {
		w.account = account
		ctx, cancel := context.WithCancel(t.Context())
		out, stderr := &reading{until: "left out", interrupt: cancel}, &strings.Builder{}
		code := run(ctx, []string{"kubectl-tandem", "monitor", "--node", "b", "--kubeconfig", w.kubeconfig, "-n", "shop"}, out, stderr)
		text := out.String()
		if code != exitOK || !strings.HasPrefix(text, "connections to Services through node b, mode nftables") || stderr.Len() > 0 ||
			!strings.Contains(text, "tcp  10.244.9.9:1001 -> 10.96.0.11:80 shop/db (cluster IP)  REJECT no endpoints\n") ||
			!strings.Contains(text, "12 connections of namespace shop left out\n") || strings.Contains(text, "default/web") {
			t.Errorf("exit code %d: %s%s", code, text, stderr)
		}
		cancel()
	}
	for line, want := range map[string]string{
		"--verdict refuse": `verdict "refuse": choose of forward, reject, drop`, "--from pod": `from "pod": want the address of a client`,
		"--interval 1h": "--interval 1h0m0s: from 100ms to 5s", "-n a --service b/c": "none of the others can be", "web": "takes no argument",
	} {
		if code, _, stderr := kubectl(t, append(strings.Fields("monitor --node b --kubeconfig "+w.kubeconfig), strings.Fields(line)...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s", line, code, stderr)
		}
	}
}

// What a verb answers for a node is what it answers there.
func TestKubectlAnswersAsOnTheNode(t *testing.T) {
	w := three(t)
	file := filepath.Join(t.TempDir(), "b.snapshot")
	_, text, _ := kubectl(t, "snapshot", "--node", "b", "--kubeconfig", w.kubeconfig)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"explain pod default/web:80", "trace outside default/web:80", "services", "services default/web", "history", "status"} {
		args := strings.Fields(line)
		code, want, stderr := tandem(t, append(args, "--snapshot", file)...)
		if code != exitOK {
			t.Fatalf("%s: %s", line, stderr)
		}
		if _, out, stderr := kubectl(t, append(args, "--node", "b", "--kubeconfig", w.kubeconfig)...); out != want {
			t.Errorf("%s:\n%s%s\nwant\n%s", line, out, stderr, want)
		}
	}
}

// The node of a pod is found by itself, and the pod's address is who sends.
func TestKubectlFindsThePodsNode(t *testing.T) {
	w := three(t)
	for line, want := range map[string]string{
		"explain -n shop pod/web-0 default/web:80":            `10.244.1.7 -> 10.96.0.10:80/tcp on node b`,
		"trace -n shop pod/web-0 default/web:80":              `10.244.1.7 -> 10.96.0.10:80/tcp on node b`,
		"explain --context shop pod/web-0 default/web:80":     `on node b`,
		"explain -n shop pod/agent default/web:80":            `192.0.2.1 -> 10.96.0.10:80/tcp on node a`,
		"explain -n shop pod/web-0 [fd00::99]:80":             `fd00::7 -> [fd00::99]:80/tcp on node b`,
		"explain -n default --node c pod web:80":              `10.96.0.10:80/tcp on node c`,
		"explain -n shop --node c pod web:80":                 `no Service shop/web has an address here`,
		"explain -n shop pod/nobody default/web:80":           `pod shop/nobody: Not Found`,
		"explain -n shop pod/pending default/web:80":          `pod shop/pending has no node yet`,
		"explain -n shop --node a pod/web-0 default/web:80":   `pod shop/web-0 is on node b, not on a`,
		"explain -n shop --all-nodes pod/web-0 default/web":   `pod/web-0 is on one node`,
		"explain -n shop pod/../../secrets/x default/web":     `want pod/NAME`,
		"explain pod default/web:80":                          `which node? --node names it, or --all-nodes asks all: a, b, c`,
		"explain --node z pod default/web:80":                 `no pod of tandem on node "z"`,
		"status -n shop":                                      `--namespace needs --node or --all-nodes`,
		"explain --context other --node a pod default/web:80": `who are you?`,
		"services --node a nobody":                            `node a: no Service default/nobody`,
		"services --node a --via carrier":                     `choose one of`,
		"status extra":                                        `takes no argument`,
	} {
		if _, out, stderr := kubectl(t, append(strings.Fields(line), "--kubeconfig", w.kubeconfig)...); !strings.Contains(out+stderr, want) {
			t.Errorf("%s: no %q in\n%s%s", line, want, out, stderr)
		}
	}
	for line, want := range map[string]string{
		"kubectl explain --kubeconfig " + w.kubeconfig + " -n shop ":         "pod/web-0",
		"kubectl explain --kubeconfig " + w.kubeconfig + " -n shop host ":    "default/web",
		"kubectl services --kubeconfig " + w.kubeconfig + " ":                "default/web",
		"kubectl services --kubeconfig " + w.kubeconfig + " --node ":         "b",
		"kubectl explain --kubeconfig " + w.kubeconfig + " -n shop --via ":   "exec",
		"kubectl explain --kubeconfig /nowhere/at/all -n shop --all-nodes p": "",
	} {
		args := strings.Split("__complete "+line, " ")
		if _, out, _ := tandem(t, args...); !slices.Contains(strings.Split(out, "\n"), want) {
			t.Errorf("completion of %q: no %q in %q", line, want, out)
		}
	}
}

// Asked of all nodes, verbs show what differs and nothing else: what every node has its own of is no difference.
func TestAllNodesShowsOnlyWhatDiffers(t *testing.T) {
	w := three(t)
	verbs := askingVerbs(t)
	delete(verbs, "snapshot")
	delete(verbs, "top") // TestTopOfAllNodesIsASum
	for name, args := range verbs {
		code, out, stderr := kubectl(t, append([]string{name, "--all-nodes", "--kubeconfig", w.kubeconfig}, args...)...)
		if code != exitOK || out != "3 of 3 nodes answer alike\n" {
			t.Errorf("%s: exit code %d\n%s%s", name, code, out, stderr)
		}
	}
	w.nodes["c"] = nodeOf(t, "c", map[string]string{"web.yaml": strings.ReplaceAll(webYAML, "10.244.1.3", "10.244.1.9"), "node.yaml": nodeYAML("c", "3")}, func(f *snapshot.File) {
		f.Status.Services[0].State, f.Status.Mode = "Partial", "iptables"
		f.History.Entries = nil
		f.Drift.Now = append(f.Drift.Now, question.Drifted{Difference: question.Difference{Object: "map vips", State: "missing"}})
	})
	want := map[string][]question.AnswerDifference{
		"status":   {{Node: "c", Field: "mode", Most: "nftables", Here: "iptables"}, {Node: "c", Field: "services[default/web].state", Most: "Programmed", Here: "Partial"}},
		"explain":  {{Node: "c", Field: "endpoints[10.244.1.3:8080]", Most: "present"}, {Node: "c", Field: "endpoints[10.244.1.9:8080]", Here: "present"}},
		"trace":    {{Node: "c", Field: "endpoints[10.244.1.3:8080]", Most: "present"}, {Node: "c", Field: "endpoints[10.244.1.9:8080]", Here: "present"}, {Node: "c", Field: "reaches[10.244.1.3:8080]", Most: "present"}, {Node: "c", Field: "reaches[10.244.1.9:8080]", Here: "present"}},
		"drift":    {{Node: "c", Field: "now[map vips]", Here: "present"}},
		"history":  {{Node: "c", Field: "entries[Service added default/web 5]", Most: "present"}},
		"services": {{Node: "c", Field: "services[default/web].endpoints[http tcp 10.244.1.3:8080]", Most: "present"}, {Node: "c", Field: "services[default/web].endpoints[http tcp 10.244.1.9:8080]", Here: "present"}, {Node: "c", Field: "services[default/web].hash", Most: "053439daa807302d", Here: "491721de669ef4f3"}, {Node: "c", Field: "services[default/web].state", Most: "Programmed", Here: "Partial"}},
	}
	for name, differences := range want {
		code, out, stderr := kubectl(t, append([]string{name, "--all-nodes", "-o", "json", "--kubeconfig", w.kubeconfig}, verbs[name]...)...)
		var a question.Across
		if err := json.Unmarshal([]byte(out), &a); err != nil || code != exitDiffers || fmt.Sprint(a.Differences) != fmt.Sprint(differences) || len(a.Nodes) != 3 || !a.Nodes[2].Differs || a.Nodes[0].Differs {
			t.Errorf("%s: exit code %d, %v\n%v\nwant %v\n%s", name, code, err, a.Differences, differences, stderr)
		}
	}
	_, out, _ := kubectl(t, "explain", "--all-nodes", "-o", "wide", "--kubeconfig", w.kubeconfig, "pod", "default/web:80")
	for _, part := range []string{"on node a", "2 of 3 nodes answer alike", "c     endpoints[10.244.1.9:8080]  -        present"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	if code, _, stderr := kubectl(t, "services", "--all-nodes", "-o", "name", "--kubeconfig", w.kubeconfig); code != exitUsage {
		t.Errorf("-o name: exit code %d, %s", code, stderr)
	}
}

// The counts of all nodes are added up by Service, frontend and endpoint. Nodes that do not count, or do not answer,
// are said to, with the reason.
func TestTopOfAllNodesIsASum(t *testing.T) {
	service := func(name string, n uint64) question.TopService {
		return question.TopService{
			Service: name, New: n, Frontends: []question.TopAddress{{Address: "10.96.0.10:80", Proto: "tcp", New: n}},
			Endpoints: []question.TopAddress{{Address: "10.244.1.2:8080", Pod: "web-0", Proto: "tcp", New: n}},
		}
	}
	open := service("default/web", 0)
	open.Traffic = &question.TopTraffic{Connections: 4, Bytes: 100}
	at := time.Now()
	node := func(name string, top question.Top) http.Handler {
		return nodeOf(t, name, map[string]string{"web.yaml": webYAML, "node.yaml": nodeYAML(name, "1")}, func(f *snapshot.File) { f.Top = &top })
	}
	nodes := map[string]http.Handler{
		"a": node("a", question.Top{At: at, Mode: "nftables", Services: []question.TopService{service("default/web", 7), service("shop/db", 20)}}),
		"b": node("b", question.Top{At: at, Mode: "iptables", Services: []question.TopService{service("default/web", 30)}}),
	}
	w := newWorld(t, nodes)
	top := func(args ...string) (int, string, string) {
		return kubectl(t, append([]string{"top", "--all-nodes", "--interval", "1ms", "--kubeconfig", w.kubeconfig}, args...)...)
	}
	code, out, stderr := top()
	if want := "counts of 2 nodes added up: new connections of 2, open ones of 0\nSERVICE      ENDPOINT                   PER SECOND  NEW CONNECTIONS\n"; code != exitOK || !strings.HasPrefix(out, want) || strings.Index(out, "default/web") > strings.Index(out, "shop/db") {
		t.Errorf("exit code %d, want\n%sgot\n%s%s", code, want, out, stderr)
	}
	code, out, _ = top("-o", "json", "--limit", "1")
	var all question.TopNodes
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != exitOK || len(all.Nodes) != 2 || all.Nodes[1].Mode != "iptables" || len(all.Services) != 1 {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	if s := all.Services[0]; s.Service != "default/web" || s.New != 37 || len(s.Frontends) != 1 || s.Frontends[0].New != 37 || len(s.Endpoints) != 1 || s.Endpoints[0].New != 37 || s.Endpoints[0].Pod != "web-0" {
		t.Errorf("%+v", s)
	}
	if code, out, _ := top("-o", "name"); code != exitOK || out != "default/web\nshop/db\n" {
		t.Errorf("exit code %d: %s", code, out)
	}

	const why = "no counters here"
	w.nodes["c"] = node("c", question.Top{At: at, Mode: "nftables", NotCounted: why, Tracked: true, Services: []question.TopService{open}})
	w.nodes["d"] = node("d", question.Top{At: at, Mode: "kernelspace", NotCounted: why, Services: []question.TopService{}})
	code, out, _ = top()
	for _, part := range []string{"counts of 4 nodes added up: new connections of 2, open ones of 1\n", "c, d: " + why + "\n", "OPEN", "default/web"} {
		if code != exitOK || !strings.Contains(out, part) {
			t.Errorf("exit code %d, no %q in\n%s", code, part, out)
		}
	}
	w.nodes["e"] = nil
	code, out, stderr = top()
	if code != exitFailure || !strings.Contains(out, "! e gave no answer: ") || !strings.Contains(out, "counts of 4 nodes") || !strings.Contains(stderr, "1 of 5 nodes gave no answer: e: ") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	for _, name := range []string{"a", "b", "c", "e"} {
		delete(w.nodes, name)
	}
	if code, _, stderr := top(); code != exitUsage || !strings.Contains(stderr, why) {
		t.Errorf("none counts: exit code %d: %s", code, stderr)
	}
}

// Nodes that do not answer are named with the reason, the others' answers are shown, and the exit code says that some
// are missing. What they say cannot drive the terminal, and is bounded.
func TestPartialAndHostileAnswers(t *testing.T) {
	endless := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", wire.JSON)
		fmt.Fprint(rw, `{"services":[{"name":"`)
		text := []byte(strings.Repeat("x", 1<<20))
		for {
			if _, err := rw.Write(text); err != nil {
				return
			}
		}
	})
	headers := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		for i := range 2 * maxHeader / 1000 {
			rw.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1000))
		}
	})
	paint := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", wire.JSON)
		fmt.Fprint(rw, `{"node":"paint","mode":"\u001b[2Jnftables\u202e","services":[]}`)
		fmt.Fprint(rw, map[string]string{"/snapshot": "\n\x1b[2J\u202e"}[r.URL.Path])
	})
	refuses := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, "go \x1b[2J away", http.StatusTeapot)
	})
	redirect := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "https://example.invalid/", http.StatusFound)
	})
	w := three(t)
	for name, node := range map[string]http.Handler{
		"endless": endless, "headers": headers, "paint": paint, "refuses": refuses, "redirect": redirect, "broken": brokenProgram{}, "absent": nil,
	} {
		w.nodes[name] = node
	}
	code, out, stderr := kubectl(t, "services", "--all-nodes", "--via", "exec", "--kubeconfig", w.kubeconfig)
	for _, part := range []string{
		"! absent gave no answer: exec in pod tandem-absent: Forbidden: no exec for you",
		"! broken gave no answer: exec in pod tandem-broken: no tandem runs on this node \\x1b[31m",
		"! endless gave no answer: ", "! headers gave no answer: exec in pod tandem-headers: answer larger than 65536 bytes", "! refuses gave no answer: go \\x1b[2J away",
		"! redirect gave no answer", "3 of 4 nodes answer alike", `\x1b[2Jnftables\u202e`,
	} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	if code != exitFailure || strings.ContainsAny(out+stderr, "\x1b\u202e") || !strings.Contains(stderr, "6 of 10 nodes gave no answer: absent, broken, endless, headers, redirect and 1 more: ") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if w.most > maxAsked {
		t.Errorf("%d nodes were asked at a time", w.most)
	}
	if _, out, _ := kubectl(t, "snapshot", "--node", "paint", "--kubeconfig", w.kubeconfig); !strings.Contains(out, `\u001b[2J`) || strings.ContainsAny(out, "\x1b\u202e") {
		t.Errorf("a snapshot drives the terminal: %q", out)
	}
	code, out, _ = kubectl(t, "status", "-o", "name", "--kubeconfig", w.kubeconfig)
	if code != exitFailure || !strings.HasPrefix(out, "a\nabsent\nb\nbroken\nc\n") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	code, out, _ = kubectl(t, "status", "--kubeconfig", w.kubeconfig)
	if code != exitFailure || strings.Count(out, "healthy") != 3 || !strings.Contains(out, "exec in pod tandem-broken") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for _, name := range []string{"broken", "absent"} {
		delete(w.nodes, name)
	}
	w.account = true
	if _, out, _ := kubectl(t, "services", "--all-nodes", "--kubeconfig", w.kubeconfig); !strings.Contains(out, "3 of 4 nodes answer alike") || !strings.Contains(out, "! redirect gave no answer: Found") {
		t.Errorf("by the proxy:\n%s", out)
	}
}

// A node that says nothing is given up, by both ways.
func TestSilentNode(t *testing.T) {
	w := newWorld(t, map[string]http.Handler{"a": http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })})
	for _, w.account = range []bool{false, true} {
		for _, line := range []string{"status", "services --all-nodes", "services --node a"} {
			code, out, stderr := kubectl(t, append(strings.Fields(line), "--timeout", "20ms", "--kubeconfig", w.kubeconfig)...)
			if code != exitFailure || !strings.Contains(out+stderr, "no answer within 20ms (--timeout)") {
				t.Errorf("%s: exit code %d\n%s%s", line, code, out, stderr)
			}
		}
	}
}

// An answer of a node among many is cut off at its limit, by both ways.
func TestAnswersOfNodesAreBounded(t *testing.T) {
	const limit = 1000
	for _, way := range []string{viaExec, viaProxy} {
		w := newWorld(t, map[string]http.Handler{"a": http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprint(rw, strings.Repeat("x", len(r.URL.Query().Get("state"))))
		})})
		w.account = true
		k := &cluster{namespace: "kube-system", account: "tandem-status", port: 10249, timeout: time.Minute, via: way, rules: &clientcmd.ClientConfigLoadingRules{ExplicitPath: w.kubeconfig}}
		to, err := k.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := k.choose(t.Context(), &to); err != nil {
			t.Fatal(err)
		}
		pods, err := k.pods(t.Context(), to, "a")
		if err != nil {
			t.Fatal(err)
		}
		for size, want := range map[int]string{limit: "<nil>", limit + maxHeader + 1: "answer larger than"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, platform.StatusURL(question.Filter{States: []string{strings.Repeat("s", size)}}), nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := carrier{k, to, pods[0], limit}.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			if res.Body.Close(); !strings.HasPrefix(fmt.Sprint(err), want) || want == "<nil>" && len(text) != size {
				t.Errorf("%s, %d bytes: %d, %v", way, size, len(text), err)
			}
		}
	}
}

// How far asking is, in one line that does not grow with the cluster.
func TestProgressOfNodes(t *testing.T) {
	for want, got := range map[string]string{
		"3 of 40 nodes asked, 1 without an answer; waiting for d, e":                    progress(3, 1, 40, []string{"d", "e"}),
		"0 of 8 nodes asked, 0 without an answer; waiting for a, b, c, d, e and 3 more": progress(0, 0, 8, strings.Split("abcdefgh", "")),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// streamOf is a stream that reads a text after the handshake; what it writes is lost.
func streamOf(t *testing.T, text string) *stream {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close() })
	connected := make(chan struct{})
	defer close(connected)
	go func() {
		defer server.Close()
		req, err := http.ReadRequest(bufio.NewReader(server))
		if err != nil {
			t.Error(err)
			return
		}
		go io.Copy(io.Discard, server)
		sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		fmt.Fprintf(server, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n%s",
			base64.StdEncoding.EncodeToString(sum[:]), streamProtocol, text)
		<-connected
	}()
	d := dialer{connect: func(context.Context, string, string) (net.Conn, error) { return client, nil }}
	res, err := d.RoundTrip(httptest.NewRequest(http.MethodGet, "http://server/", nil))
	if err != nil || d.conn == nil {
		t.Fatal(res, err)
	}
	return &stream{Conn: d.conn}
}

// A stream keeps the standard output, however it is cut into frames, and says why a program failed; what breaks the
// rules is an error.
func TestStream(t *testing.T) {
	for name, c := range map[string]struct{ in, out, err string }{
		"a message":          {"\x82\x04\x01abc", "abc", "EOF"},
		"in parts":           {"\x02\x03\x01ab\x89\x01?\x80\x01c\x82\x02\x01d", "abcd", "EOF"},
		"a text":             {"\x81\x03\x01ab", "ab", "EOF"},
		"long":               {"\x82\x7e\x01\x01\x01" + strings.Repeat("x", 256), strings.Repeat("x", 256), "EOF"},
		"longer":             {"\x82\x7f\x00\x00\x00\x00\x00\x00\x00\x03\x01ab", "ab", "EOF"},
		"other channels":     {"\x82\x02\x09x\x82\x00\x82\x02\x02e\x82\x02\x01y", "y", "EOF"},
		"closed":             {"\x82\x02\x01a\x88\x00\x82\x02\x01b", "a", "EOF"},
		"failed, in pieces":  {"\x82\x0b\x02tandem: no\x02\x05\x03" + `{"st` + "\x80\x10" + `atus":"Failure"}`, "", "no"},
		"failed with reason": {"\x82\x0b\x02tandem: no\x82\x15\x03" + `{"status":"Failure"}`, "", "no"},
		"cut":                {"\x82\x09\x01a", "a", "EOF"},
		"masked":             {"\x82\x81\x00\x00\x00\x00\x01", "", "bad MASK"},
		"a long ping":        {"\x89\x7e\x01\x00", "", "len > 125"},
	} {
		out, err := io.ReadAll(streamOf(t, c.in))
		if err == nil {
			err = io.EOF
		}
		if string(out) != c.out || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	s := streamOf(t, "\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x01\x02"+strings.Repeat("e", 1<<16)+"\x88\x00")
	if _, err := io.ReadAll(s); err != nil || s.said.Len() != maxError {
		t.Errorf("%d bytes of the standard error are kept, %v", s.said.Len(), err)
	}
}

// Whatever a stream reads, it gives no more than that, and keeps little.
func FuzzStream(f *testing.F) {
	f.Add("\x82\x04\x01abc\x89\x01?\x80\x01c")
	f.Add("\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff\x03{}")
	f.Fuzz(func(t *testing.T, text string) {
		s := streamOf(t, text)
		if out, _ := io.ReadAll(s); len(out) > len(text) || s.said.Len() > maxError || s.ended.Len() > maxError {
			t.Errorf("%d bytes of %d, %d and %d are kept", len(out), len(text), s.said.Len(), s.ended.Len())
		}
	})
}

// However a snapshot is cut into writes, what prints stays, and what does not becomes escapes.
func TestPrintableLines(t *testing.T) {
	const text = "{\"name\":\"é\u202eш\U0001f600\"}\n"
	for size := 1; size <= len(text); size++ {
		var out strings.Builder
		if _, err := io.CopyBuffer(&printableLines{out: &out}, struct{ io.Reader }{strings.NewReader(text)}, make([]byte, size)); err != nil || out.String() != "{\"name\":\"é\\u202eш\U0001f600\"}\n" {
			t.Errorf("%d bytes at a time: %q, %v", size, out.String(), err)
		}
	}
}
