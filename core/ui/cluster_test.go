// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/ui"
)

// fleet is a cluster whose nodes have states.
type fleet struct {
	mu     sync.Mutex
	nodes  map[string]*ui.Input // nil: it does not answer
	unread map[string]bool      // not asked yet
	listed error
	asked  map[string]int // for pages of the node
}

// newFleet has so many nodes, of which node-3 does not answer, node-5 was not asked yet, and node-7 is behind.
func newFleet(nodes, services int) *fleet {
	f := &fleet{nodes: map[string]*ui.Input{}, unread: map[string]bool{"node-5": true}, asked: map[string]int{}}
	for i := range nodes {
		in := world(services)
		in.Status.Node = fmt.Sprintf("node-%d", i+1)
		in.Status.Version, in.Status.Drift = "0.0.0-git+b4222d01", uint64(i%4) // a build that is no release
		switch in.Status.Node {
		case "node-3":
			in = nil
		case "node-7":
			in.Status.Hash, in.Status.Healthy, in.Status.Reasons = "77f0", false, []string{"endpointslices: up to date 95 s ago <b>"}
		case "node-8":
			in.Status.Version, in.Status.Mode = "v0.9.4", "iptables"
		}
		if i%3 > 0 && in != nil { // few have problems
			for s := range in.Status.Services {
				in.Status.Services[s].State, in.Status.Services[s].Problems = "Programmed", nil
			}
		}
		f.nodes[fmt.Sprintf("node-%d", i+1)] = in
	}
	return f
}

func (f *fleet) handler() http.Handler {
	return ui.ClusterHandler(ui.Cluster{Name: "staging", Nodes: f.reports, Node: f.node})
}

func (f *fleet) reports(context.Context) (all []question.NodeReport, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, in := range f.nodes {
		r := question.NodeReport{Node: question.Node{Node: name, Pod: "tandem-" + name}}
		switch {
		case f.unread[name]:
		case in == nil:
			r.Err = "no answer within 30s (--timeout)"
		default:
			text, err := json.Marshal(in.Status)
			if err != nil {
				return nil, err
			}
			if r, err = question.ReportNode(name, "tandem-"+name, bytes.NewReader(text)); err != nil {
				return nil, err
			}
		}
		all = append(all, r)
	}
	return all, f.listed
}

func (f *fleet) node(_ context.Context, name string) (ui.Source, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[name]++
	in, known := f.nodes[name]
	if !known {
		return ui.Source{}, fmt.Errorf("no pod of tandem on node %q", name)
	}
	return ui.Of(func(context.Context) (*ui.Input, error) {
		if in == nil {
			return nil, errors.New("no answer within 30s (--timeout)")
		}
		return in, nil
	}), nil
}

// The page of all nodes has each with its state, and problems once with the nodes that have them; those of a node are
// asked of that node alone, and lead to no other's.
func TestPagesOfACluster(t *testing.T) {
	f := newFleet(9, 40)
	h := f.handler()
	for path, want := range map[string][]string{
		"/ui": {
			"staging", "6 of 9 healthy", "no answer within 30s", "not asked yet", "up to date 95 s ago &lt;b&gt;", "v0.9.4", "and 1 more",
			`href="/node/node-1/ui"`, `href="/node/node-4/ui/service/`, "9 of 9 nodes",
		},
		"/ui?state=no+answer":                     {"1 of 9 nodes", "node-3"},
		"/ui?q=iptables":                          {"1 of 9 nodes", `href="/node/node-8/ui"`},
		"/ui?sort=drift":                          {"aria-sort"},
		"/ui?q=nowhere":                           {"No node fits."},
		"/node/node-8/ui":                         {"iptables", `href="/node/node-8/ui/history"`, `href="/ui">Nodes`, `action="/node/node-8/ui"`},
		"/node/node-8/ui/":                        {"iptables"},
		"/node/node-2/ui/service/shop/checkout-0": {"From frontends to endpoints", `href="/node/node-2/ui"`},
		"/node/node-2/ui/history":                 {"/node/node-2/ui/history?page=2"},
		"/node/node-2/ui/explain":                 {`action="/node/node-2/ui/explain"`},
		"/node/node-2/ui/explain?from=outside&to=shop/checkout-0:80": {"each decision"},
		"/ui/docs/": {"The manual of Tandem"}, "/ui/style.css": {"no-answer"},
	} {
		w := get(h, path)
		for _, text := range want {
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s: %d without %q\n%.5000s", path, w.Code, text, w.Body)
			}
		}
		if own, ok := strings.CutPrefix(path, "/node/"); ok {
			name, _, _ := strings.Cut(own, "/")
			for _, address := range references(w.Body.String()) {
				if !strings.HasPrefix(address, "/node/"+name+"/ui") && address != "/ui" && !strings.HasPrefix(address, "/ui/docs") && !strings.HasPrefix(address, "#") && !strings.HasSuffix(address, ".css") {
					t.Errorf("%s leads to %s", path, address)
				}
			}
		}
	}
	for path, code := range map[string]int{"/node/node-3/ui": 503, "/node/nobody/ui": 503, "/node/node-1/ui/service/no/such": 404, "/ui/path?node=node-1&to=web": 400, "/node/node-1": 404} {
		if w := get(h, path); w.Code != code {
			t.Errorf("%s: %d, want %d", path, w.Code, code)
		}
	}
	for path, to := range map[string]string{
		"/ui/path?node=node-2&to=shop/web":               "/node/node-2/ui/service/shop/web",
		"/ui/path?node=node-2&to=shop/web:80":            "/node/node-2/ui/service/shop/web",
		"/ui/path?node=node-2&to=shop/web:80&from=pod":   "/node/node-2/ui/explain?from=pod&to=shop%2Fweb%3A80",
		"/ui/path?node=//evil.example&to=a/b":            "/node/%2F%2Fevil.example/ui/service/a/b",
		"/ui/path?node=node-2&from=host&to=10.96.0.1:80": "/node/node-2/ui/explain?from=host&to=10.96.0.1%3A80",
	} {
		if w := get(h, path); w.Code != http.StatusSeeOther || w.Header().Get("Location") != to {
			t.Errorf("%s: %d to %s, want %s", path, w.Code, w.Header().Get("Location"), to)
		}
	}
}

// A node that is too old for what a page asks has answered that: the page says so, with its version, and not that there is no answer.
func TestPagesOfAnOlderNode(t *testing.T) {
	for name, refusal := range map[string]error{
		"of a query":     question.Refusal(`unknown query "changes": is the running tandem another version?`),
		"of a parameter": question.Refusal(`query top: json: unknown field "open"`),
		"of all queries": question.Refusal("404 page not found"),
	} {
		old := source(world(20))
		old.Services = refuse[question.ServicesRequest, question.Services](refusal)
		old.Changes = refuse[history.Filter, history.Document](refusal)
		old.Explain = refuse[oracle.Question, question.Explanation](refusal)
		old.Top = refuse[question.TopRequest, question.Top](refusal)
		old.Trace = refuse[oracle.Question, question.Trace](refusal)
		ancient := old
		ancient.Status = refuse[question.Filter, question.Status](refusal)
		h := ui.ClusterHandler(ui.Cluster{Node: func(_ context.Context, node string) (ui.Source, error) {
			return map[string]ui.Source{"old": old, "ancient": ancient}[node], nil
		}})
		for _, page := range []string{"", "/service/shop/checkout-0", "/traffic", "/history", "/explain?from=host&to=shop/checkout-0:80", "/explain?from=host&to=shop/checkout-0:80&trace=1"} {
			for node, version := range map[string]string{"old": "v1.0.0", "ancient": "of an unknown version"} {
				w := get(h, "/node/"+node+"/ui"+page)
				text := w.Body.String()
				if says := fmt.Sprintf("node %s runs tandem %s, which does not know what this page asks", node, version); w.Code != http.StatusNotFound || !strings.Contains(text, says) || strings.Contains(strings.ToLower(text), "no answer") {
					t.Errorf("%s, %s of %s: %d without %q\n%s", name, page, node, w.Code, says, text)
				}
			}
		}
	}
}

// refuse answers a question with an error.
func refuse[P, A any](err error) func(context.Context, P) (A, error) {
	return func(context.Context, P) (a A, _ error) { return a, err }
}

// references are the addresses that a page leads to.
func references(body string) (all []string) {
	for _, name := range []string{`href="`, `action="`} {
		for _, part := range strings.Split(body, name)[1:] {
			address, _, _ := strings.Cut(part, `"`)
			all = append(all, address)
		}
	}
	return all
}

// What is shown follows the nodes: one that answers again is healthy, and a list of nodes that cannot be read any more
// hides none.
func TestAClusterChanges(t *testing.T) {
	f := newFleet(9, 20)
	h := f.handler()
	state := func(node string) string {
		_, row, _ := strings.Cut(get(h, "/ui").Body.String(), `<a href="/node/`+node+`/ui">`+node+"</a></th>")
		_, row, _ = strings.Cut(row, `<span class="state `)
		state, _, _ := strings.Cut(row, `"`)
		return state
	}
	all := []string{state("node-2"), state("node-3"), state("node-4"), state("node-5"), state("node-7")}
	if want := []string{"healthy", "no-answer", "failing", "waiting", "not-healthy"}; !slices.Equal(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
	f.mu.Lock()
	f.nodes["node-3"] = f.nodes["node-2"]
	f.nodes["node-2"].Status.Hash = "other"
	f.nodes["node-9"].Status.Hash = "other still"
	f.listed = errors.New("list the pods of tandem: connection refused")
	f.mu.Unlock()
	if got := state("node-9"); got != "differs" {
		t.Errorf("node-9 is %s", got)
	}
	if got := state("node-3"); got == "no-answer" {
		t.Error("node-3 answers")
	}
	if body := get(h, "/ui").Body.String(); !strings.Contains(body, "connection refused") || !strings.Contains(body, "9 of 9 nodes") {
		t.Errorf("%s", body)
	}
	for name := range f.nodes {
		delete(f.nodes, name)
	}
	if w := get(h, "/ui"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "connection refused") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

// The page of 1,000 nodes with other problems each is bounded.
func TestManyNodes(t *testing.T) {
	var reports []question.NodeReport
	for i := range 1000 {
		r := question.NodeReport{Node: question.Node{Node: fmt.Sprintf("node-%d", i), Version: "v1", Healthy: true}}
		for k := range 50 {
			detail := fmt.Sprint(strings.Repeat("x", 400), " ", i, k)
			r.Services = append(r.Services, question.ServiceProblems{Service: fmt.Sprintf("shop/web-%d", k), State: "Partial", Problems: []question.Problem{{Reason: "Failing", Detail: detail}}})
		}
		reports = append(reports, r)
	}
	h := ui.ClusterHandler(ui.Cluster{Nodes: func(context.Context) ([]question.NodeReport, error) { return slices.Clone(reports), nil }})
	if w := get(h, "/ui"); w.Code != http.StatusOK || w.Body.Len() > 150<<10 || !strings.Contains(w.Body.String(), "and 49,992 more") {
		t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
	}
}
