// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/snapshot"
)

// changing is a tandem that another one takes the place of.
type changing struct{ now atomic.Value }

type asHandler struct{ http.Handler }

func (c *changing) become(h http.Handler) { c.now.Store(asHandler{h}) }

func (c *changing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.now.Load().(asHandler).ServeHTTP(w, r)
}

// surveyOf surveys a world.
func surveyOf(t *testing.T, w *worldOfNodes) *survey {
	t.Helper()
	k := newCluster()
	k.rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: w.kubeconfig}
	k.namespace, k.account, k.selector, k.port, k.timeout = "kube-system", "tandem-status", "app.kubernetes.io/name=tandem", 10249, time.Minute
	to, err := k.open()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := newSurvey(ctx, k, to)
	s.wait = time.Minute // what is not answered by then fails the test
	t.Cleanup(func() { s.end(cancel) })
	return s
}

// due makes the next look begin a round, with a new list of nodes.
func (s *survey) due() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = time.Time{}
}

// states are those of the nodes.
func (s *survey) states(t *testing.T) (all []string, err error) {
	t.Helper()
	reports, err := s.reports(t.Context())
	question.CompareReports(reports)
	for i := range reports {
		all = append(all, reports[i].Node.Node+" "+reports[i].State())
	}
	return all, err
}

// Nodes are asked once a round however many look, and what is known follows them: one that fails, changes and comes
// back.
func TestSurveyFollowsTheNodes(t *testing.T) {
	node := func(name, hash string) http.Handler {
		return nodeOf(t, name, map[string]string{"web.yaml": webYAML, "node.yaml": nodeYAML(name, "1")}, func(f *snapshot.File) { f.Status.Hash = hash })
	}
	b := new(changing)
	b.become(node("b", "h1"))
	w := newWorld(t, map[string]http.Handler{"a": node("a", "h1"), "b": b, "c": node("c", "h1")})
	s := surveyOf(t, w)
	want := func(wanted ...string) {
		t.Helper()
		if got, err := s.states(t); err != nil || !slices.Equal(got, wanted) {
			t.Errorf("%v, want %v: %v", got, wanted, err)
		}
	}
	for range 5 {
		want("a healthy", "b healthy", "c healthy")
	}
	w.mu.Lock()
	if fmt.Sprint(w.asked) != "map[a exec:1 b exec:1 c exec:1]" {
		t.Errorf("%v", w.asked)
	}
	w.mu.Unlock()
	b.become(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "out of order", http.StatusConflict) }))
	s.due()
	want("a healthy", "b no answer", "c healthy")
	b.become(node("b", "h2"))
	s.due()
	want("a healthy", "b differs", "c healthy")
	b.become(node("b", "h1"))
	s.due()
	want("a healthy", "b healthy", "c healthy")
	s.reach = func(context.Context) (reached, error) { return reached{}, errors.New("connection refused") }
	s.due()
	if got, err := s.states(t); err == nil || len(got) != 3 {
		t.Errorf("%v: without a list of nodes %v", err, got)
	}
}

// That a node is too old for a question is known of it by either way, whether it knows no such question or none at all.
func TestOlderNodesAreKnown(t *testing.T) {
	refuse := func(code int, text string) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, text, code) })
	}
	w := newWorld(t, map[string]http.Handler{
		"a": http.NotFoundHandler(), "b": refuse(http.StatusConflict, `unknown query "changes": is the running tandem another version?`),
		"c": refuse(http.StatusConflict, `query changes: json: unknown field "limit"`), "d": refuse(http.StatusConflict, "busy with other queries"),
	})
	for _, w.account = range []bool{false, true} {
		s := surveyOf(t, w)
		for node, older := range map[string]bool{"a": true, "b": true, "c": true, "d": false} {
			from, err := s.node(t.Context(), node)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := from.Changes(t.Context(), history.Filter{}); err == nil || errors.Is(err, question.ErrOlder) != older {
				t.Errorf("%s, with tokens: %t: %v", node, w.account, err)
			}
		}
	}
	if w.asked["a exec"] == 0 || w.asked["a proxy"] == 0 {
		t.Errorf("not by both ways: %v", w.asked)
	}
	s := surveyOf(t, w)
	s.due()
	states, err := s.states(t)
	if want := []string{"a older version", "b older version", "c older version", "d no answer"}; err != nil || !slices.Equal(states, want) {
		t.Errorf("%q, %v", states, err)
	}
	_, out, _ := kubectl(t, "status", "--kubeconfig", w.kubeconfig)
	for _, want := range []string{`a +- +- +older version`, `b +- +- +older version`, `d +- +- +no answer`} {
		if !regexp.MustCompile(`(?m)^` + want).MatchString(out) {
			t.Errorf("no %s:\n%s", want, out)
		}
	}
}

// counting counts the bytes of a tandem's answers.
type counting struct {
	http.Handler
	bytes *atomic.Int64
}

func (c counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Handler.ServeHTTP(countingWriter{w, c.bytes}, r)
}

type countingWriter struct {
	http.ResponseWriter
	bytes *atomic.Int64
}

func (c countingWriter) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

// What a round over the nodes moves does not grow with their Services, only with those that something is wrong with: of
// 10,000 it was 4 MB from each node every 8 s. The page has the same numbers and problems, and so has kubectl tandem status.
func TestARoundMovesLittle(t *testing.T) {
	const services = 10_000
	var moved atomic.Int64
	nodes := map[string]http.Handler{}
	for _, name := range []string{"a", "b"} {
		node := nodeOf(t, name, map[string]string{"web.yaml": webYAML, "node.yaml": nodeYAML(name, "1")}, func(f *snapshot.File) {
			f.Status.Problems = []question.Problem{{Object: "data plane", Reason: "Failing", Detail: "no space"}}
			f.Status.Services, f.Status.Total = nil, services
			for i := range services {
				s := question.Service{Name: fmt.Sprintf("shop/web-%d", i), State: "Programmed", Hash: "0123456789abcdef", Ready: 3}
				for _, kind := range []string{"ClusterIP", "LoadBalancer"} {
					s.Frontends = append(s.Frontends, question.Frontend{Port: "http", Kind: kind, Address: "10.96.100.100:80", Proto: "TCP", Endpoints: 3, Why: "ready"})
				}
				if i < 9 {
					s.State = question.States()[i%3]
					s.Problems = []question.Problem{{Reason: s.State, Detail: fmt.Sprint("problem ", i)}}
				}
				f.Status.Services = append(f.Status.Services, s)
			}
		})
		nodes[name] = counting{node, &moved}
	}
	w := newWorld(t, nodes)
	s := surveyOf(t, w)
	reports, err := s.reports(t.Context())
	if err != nil || len(reports) != 2 {
		t.Fatalf("%v: %d reports", err, len(reports))
	}
	for _, r := range reports {
		if r.Node.Services != services || r.Failing != 3 || r.Partial != 3 || len(r.Services) != 9 || len(r.Problems) != 1 {
			t.Errorf("%+v with %d Services", r.Node, len(r.Services))
		}
	}
	round := moved.Swap(0)
	_, stdout, stderr := tandem(t, "kubectl", "--kubeconfig", w.kubeconfig, "status", "-o", "json")
	if strings.Count(stdout, `"services": 10000`) != 2 || strings.Count(stdout, `"failing": 3`) != 2 {
		t.Errorf("%s%s", stdout, stderr)
	}
	short := moved.Load()
	t.Logf("%d bytes a node a round, %d for status", round/2, short/2)
	if round > 2*8<<10 || short > 2*8<<10 {
		t.Errorf("%d and %d bytes of two nodes", round, short)
	}
}

// A node that does not answer holds up neither the page nor the others, and a page of its own ends.
func TestSurveyOfASilentNode(t *testing.T) {
	nodes := map[string]http.Handler{}
	for _, name := range []string{"a", "b"} {
		nodes[name] = nodeOf(t, name, map[string]string{"web.yaml": webYAML, "node.yaml": nodeYAML(name, "1")}, nil)
	}
	release := make(chan struct{})
	nodes["c"] = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	s := surveyOf(t, newWorld(t, nodes))
	s.wait = 0
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got, err := s.states(t)
		if err == nil && slices.Equal(got, []string{"a healthy", "b healthy", "c waiting"}) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%v: %v", got, err)
		}
	}
	from, err := s.node(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("no answer within 50ms"))
	defer cancel()
	if _, err := from.Status(ctx, question.Filter{}); err == nil || !strings.Contains(err.Error(), "no answer within") && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A page waits a while for its questions, but for a trace, which the node takes longer for, as long as --timeout says;
// either names what it was.
func TestPagesWait(t *testing.T) {
	release := make(chan struct{})
	node := nodeOf(t, "a", map[string]string{"web.yaml": webYAML, "node.yaml": nodeYAML("a", "1")}, nil)
	w := newWorld(t, map[string]http.Handler{"a": http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
			node.ServeHTTP(rw, r)
		case <-r.Context().Done():
		}
	})})
	s := surveyOf(t, w)
	if s.page.after != pageWait || s.k.timeout != time.Minute {
		t.Errorf("a page waits %s, a node may take %s", s.page.after, s.k.timeout)
	}
	s.page = deadline{time.Millisecond, errors.New("no answer, as long as this page waits")}
	from, err := s.node(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	packet := oracle.Question{From: "outside", To: "default/web:80"}
	traced := make(chan error)
	go func() {
		_, err := from.Trace(t.Context(), packet)
		traced <- err
	}()
	if _, err := from.Status(t.Context(), question.Filter{}); fmt.Sprint(err) != s.page.late.Error() {
		t.Errorf("status: %v", err)
	}
	if _, err := from.Explain(t.Context(), packet); fmt.Sprint(err) != s.page.late.Error() {
		t.Errorf("explain: %v", err)
	}
	close(release)
	if err := <-traced; err != nil {
		t.Errorf("trace: %v", err)
	}
	k := newCluster()
	k.timeout = time.Second
	if s := newSurvey(t.Context(), k, session{}); s.page.after != time.Second || !strings.Contains(s.page.late.Error(), "1s (--timeout)") {
		t.Errorf("a page waits longer than --timeout: %+v", s.page)
	}
}

// A token is renewed in the middle of its life. Where that fails, the old one is used while it is good, and after that the
// other way, if the user has not ruled it out.
func TestTokenIsKeptUntilItsRenewal(t *testing.T) {
	for _, via := range []string{viaAuto, viaProxy} {
		w := three(t)
		account := func(there bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.account = there
		}
		account(true)
		s := surveyOf(t, w)
		s.k.via = via
		to, err := s.k.open()
		if err != nil {
			t.Fatal(err)
		}
		choose := func(when, want string) {
			t.Helper()
			if err := s.k.choose(t.Context(), &to); to.token != want || (err != nil) != (want == "" && via == viaProxy) {
				t.Errorf("--via %s, %s: token %q, want %q: %v", via, when, to.token, want, err)
			}
		}
		choose("at first", "for tandems")
		account(false)
		choose("a new one", "for tandems")
		to.chosen = time.Now().Add(-renewAfter - time.Second)
		choose("a renewal that fails", "for tandems")
		account(true)
		choose("a renewal", "for tandems")
		if time.Since(to.chosen) > renewAfter {
			t.Errorf("--via %s: not renewed", via)
		}
		account(false)
		to.chosen = time.Now().Add(-goodFor - time.Second)
		choose("too old", "")
	}
}

// Requests of pages go so many at a time, and a turn is free again however a request ends.
func TestRequestsTakeTurns(t *testing.T) {
	var under, most atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		most.Store(max(most.Load(), under.Add(1)))
		defer under.Add(-1)
		if r.URL.Path == "/broken" {
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "answer")
	}))
	defer server.Close()
	client := http.Client{Transport: inTurn{http.DefaultTransport, make(chan struct{}, 1)}}
	for _, path := range []string{"/", "/broken", "/", "/broken", "/"} {
		res, err := client.Get(server.URL + path)
		if (err != nil) != (path == "/broken") {
			t.Fatalf("%s: %v", path, err)
		}
		if err == nil {
			_ = res.Body.Close()
		}
	}
	res, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	if _, err := client.Do(req); !errors.Is(err, context.DeadlineExceeded) { // the server would answer at once
		t.Errorf("with all turns taken: %v", err)
	}
	_ = res.Body.Close()
	if most.Load() != 1 {
		t.Errorf("%d at a time", most.Load())
	}
}
