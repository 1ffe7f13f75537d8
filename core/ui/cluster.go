// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/question"
)

// All nodes of a cluster are a page of their own, /ui, made of a short report of each. Whatever is about one of them
// is on the pages that a node has of itself, below /node/NAME: they ask that node.

// Cluster is what the pages of all nodes are made of. It is safe for concurrent use.
type Cluster struct {
	Name string
	// Nodes are the reports that there are now, and why the list of nodes may be out of date: a node that did not
	// answer yet has one without a version.
	Nodes func(context.Context) ([]question.NodeReport, error)
	Node  func(ctx context.Context, name string) (Source, error)
}

// ClusterHandler serves the page of all nodes at /ui, and those of each below /node/NAME/ui.
func ClusterHandler(of Cluster) http.Handler {
	p := &pages{many: true, of: func(r *http.Request) (Source, error) { return of.Node(r.Context(), r.PathValue("node")) }}
	c := &clusterPages{of}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ui", http.StatusFound) })
	mux.HandleFunc("GET /ui", c.nodes)
	mux.HandleFunc("GET /ui/{$}", c.nodes)
	mux.HandleFunc("GET /ui/path", c.path)
	p.register(mux, "/node/{node}")
	manual := newBook(true)
	manual.many = true
	manual.register(mux)
	registerAssets(mux)
	return secured(mux)
}

type clusterPages struct{ Cluster }

// clusterPage is the page of all nodes.
type clusterPage struct {
	shell
	Query, State, Sort string
	States             []count
	Figures            []figure
	Columns            []column
	Problems           []clusterProblem // the first ones
	More               int              // problems besides
	Names              []string         // of nodes
	Rows               []nodeRow
	Pager              pager
}

// figure is one of all nodes; where they do not have the same it is a warning.
type figure struct {
	Title, Value, Unit string
	Warn               bool
}

// long reports whether a value is a text that does not fit a line of its tile in the size of numbers.
func (f figure) long() bool { return len(f.Value) > 9 }

// clusterProblem is a problem with the nodes that have it.
type clusterProblem struct {
	*question.ClusterProblem
	On   []link
	More int // nodes besides
}

type link struct{ Text, To string }

type nodeRow struct {
	*question.NodeReport
	Link, State, Note string
}

// row is a report as a row of the table.
func row(r *question.NodeReport) nodeRow {
	v := nodeRow{NodeReport: r, Link: nodeRoot(r.Node.Node) + "/ui", State: r.State(), Note: r.Err}
	switch {
	case r.Err != "":
	case len(r.Reasons) > 0:
		v.Note = strings.Join(r.Reasons, "; ")
	case r.Differs:
		v.Note = "knows other Services than most"
	case v.State == question.NodeWaiting:
		v.Note = "not asked yet"
	}
	return v
}

// nodeRoot is what the addresses of a node's pages begin with.
func nodeRoot(node string) string { return "/node/" + url.PathEscape(node) }

// maxOn is how many nodes are named with a problem.
const maxOn = 4

func (c *clusterPages) nodes(w http.ResponseWriter, r *http.Request) {
	reports, err := c.Nodes(r.Context())
	s := shell{Title: "Nodes", Here: "nodes", Many: true, Subject: c.Name, Period: manyPeriod}
	if err != nil && len(reports) == 0 {
		silent(w, s, err)
		return
	}
	if err != nil {
		s.Reasons = []string{err.Error()}
	}
	q := r.URL.Query()
	render(w, http.StatusOK, clusterOf(s, reports, q.Get("q"), q.Get("state"), q.Get("sort"), number(q.Get("page"))))
}

func clusterOf(s shell, reports []question.NodeReport, query, state, sort string, page int) *clusterPage {
	v := &clusterPage{shell: s, Query: query, State: state, Sort: sort}
	question.CompareReports(reports)
	counts, words := map[string]int{}, strings.Fields(strings.ToLower(query))
	var rows []nodeRow
	for i := range reports {
		one := row(&reports[i])
		v.Names = append(v.Names, one.Node.Node)
		counts[one.State]++
		if (state == "" || one.State == state) && one.has(words) {
			rows = append(rows, one)
		}
	}
	v.Total = len(reports)
	for _, of := range question.NodeStates() {
		if counts[of] > 0 || of == question.NodeHealthy {
			v.States = append(v.States, count{of, counts[of], address("/ui", url.Values{"state": {of}})})
		}
	}
	switch healthy := counts[question.NodeHealthy] + counts[question.NodeFailing] + counts[question.NodeDiffers]; {
	case len(reports) == 0:
		v.Health = "not known yet"
	case healthy == len(reports) && len(s.Reasons) == 0:
		v.Healthy, v.Health = true, "healthy"
	default:
		v.Health = fmt.Sprintf("%d of %d healthy", healthy, len(reports))
	}
	v.Figures = figures(reports)
	slices.SortStableFunc(rows, func(a, b nodeRow) int { return compareNodes(a, b, sort) })
	v.Columns = []column{
		{Title: "Node", Link: "name"},
		{Title: "State", Link: "state"},
		{Title: "Version", Link: "version"},
		{Title: "Mode", Link: "mode"},
		{Title: "Lag", Link: "lag", Number: true},
		{Title: "Drift repaired", Link: "drift", Number: true},
		{Title: "Services", Number: true},
		{Title: "Failing", Number: true},
		{Title: "Partial", Link: "partial", Number: true},
		{Title: "Note"},
	}
	for i := range v.Columns {
		if c := &v.Columns[i]; c.Link != "" {
			c.Sorted = c.Link == cmp.Or(sort, "state")
			c.Link = address("/ui", url.Values{"q": {query}, "state": {state}, "sort": {c.Link}})
		}
	}
	v.Rows, v.Pager = paged(rows, page, "/ui", url.Values{"q": {query}, "state": {state}, "sort": {sort}})
	problems := question.Together(reports)
	v.More = max(0, len(problems)-maxProblems)
	for _, p := range problems[:len(problems)-v.More] {
		one := clusterProblem{ClusterProblem: p, More: max(0, len(p.Nodes)-maxOn)}
		for _, node := range p.Nodes[:len(p.Nodes)-one.More] {
			to := nodeRoot(node) + "/ui"
			if p.Service != "" {
				to += "/service/" + p.Service
			}
			one.On = append(one.On, link{node, to})
		}
		v.Problems = append(v.Problems, one)
	}
	return v
}

// has reports whether a node has all words, in what its row shows.
func (r nodeRow) has(words []string) bool {
	return hasAll(strings.Join([]string{r.Node.Node, r.Version, r.Mode, r.State, r.Note}, " "), words)
}

// compareNodes orders rows, which are in the order of names: what needs attention first.
func compareNodes(a, b nodeRow, sort string) int {
	switch sort {
	case "name":
		return 0
	case "version":
		return cmp.Compare(a.Version, b.Version)
	case "mode":
		return cmp.Compare(a.Mode, b.Mode)
	case "lag":
		return cmp.Compare(b.Lag, a.Lag)
	case "drift":
		return cmp.Compare(b.Drift, a.Drift)
	case "partial":
		return cmp.Compare(b.Partial, a.Partial)
	}
	return cmp.Compare(slices.Index(question.NodeStates(), a.State), slices.Index(question.NodeStates(), b.State))
}

// figures are those of all nodes that have answered.
func figures(reports []question.NodeReport) []figure {
	versions, modes, known := map[string]int{}, map[string]int{}, map[string]int{}
	lag, drift, answered := 0.0, uint64(0), 0
	for i := range reports {
		if r := &reports[i]; r.Err == "" && r.Version != "" {
			answered++
			versions[r.Version]++
			modes[r.Mode]++
			known[r.Hash]++
			lag, drift = max(lag, r.Lag), drift+r.Drift
		}
	}
	if answered == 0 {
		return nil
	}
	return []figure{
		frequent("Version", versions), frequent("Mode", modes),
		{Title: "Desired states", Value: grouped(len(known)), Warn: len(known) > 1},
		{Title: "Longest lag", Value: history.Short(history.Seconds(lag))},
		{Title: "Drift repaired", Value: grouped(drift), Warn: drift > 0},
	}
}

// frequent is what most nodes have, and how many others there are.
func frequent(title string, counts map[string]int) figure {
	f := figure{Title: title, Warn: len(counts) > 1}
	for value, n := range counts {
		if n > counts[f.Value] || n == counts[f.Value] && value < f.Value {
			f.Value = value
		}
	}
	if f.Warn {
		f.Unit = fmt.Sprintf("and %d more", len(counts)-1)
	}
	return f
}

var errPath = errors.New("a Service's path needs a node, and a Service: NAMESPACE/NAME, or with FROM also ADDRESS:PORT")

// path leads to the page of a node about a Service, or about a connection to it.
func (c *clusterPages) path(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	node, from, to := strings.TrimSpace(q.Get("node")), strings.TrimSpace(q.Get("from")), strings.TrimSpace(q.Get("to"))
	namespace, name, ok := strings.Cut(to, "/")
	root := nodeRoot(node) + "/ui"
	switch {
	case node == "" || to == "" || from == "" && !ok:
		s := shell{Title: "Which path?", Here: "nodes", Many: true, Subject: c.Name, Err: errPath}
		render(w, http.StatusBadRequest, &silentPage{s})
	case from != "":
		http.Redirect(w, r, address(root+"/explain", url.Values{"from": {from}, "to": {to}}), http.StatusSeeOther)
	default:
		name, _, _ = strings.Cut(name, ":") // a port of it
		http.Redirect(w, r, root+"/service/"+url.PathEscape(namespace)+"/"+url.PathEscape(name), http.StatusSeeOther)
	}
}

func (v *clusterPage) body(b *builder) {
	b.put(`<h1>Nodes</h1>
<dl class="figures" id="figures" data-live>
<div><dt><a href="/ui">Nodes</a></dt><dd>%s</dd></div>
`, grouped(v.Total))
	for _, c := range v.States {
		b.put(`<div class="%s"><dt><a href="%s">%s</a></dt><dd>%s</dd></div>`, className(c.State), c.Link, c.State, grouped(c.N))
	}
	for i, f := range v.Figures {
		b.put(`<div class="%s%s"><dt>%s</dt><dd%s>%s`, when(i == 0, "next"), when(f.Warn, " partial"), f.Title, when(f.long(), ` class="long"`), f.Value)
		b.given(` <span class="unit">%s</span>`, f.Unit)
		b.put(`</dd></div>`)
	}
	b.put(`</dl>
<div id="problems" data-live>`)
	if len(v.Problems) > 0 {
		v.problems(b)
	}
	b.put(`</div>

<section aria-labelledby="way">
<h2 id="way">A Service's path on a node</h2>
<form class="search" action="/ui/path" method="get">
<span class="field"><label for="node">Node</label> <input id="node" name="node" type="search" list="names" autocomplete="off" required></span>
<datalist id="names">`)
	for _, name := range v.Names {
		b.put(`<option value="%s"></option>`, name)
	}
	b.put(`</datalist>
<span class="field"><label for="from">From</label> <input id="from" name="from" type="search" placeholder="pod, host, outside" autocomplete="off"></span>
<span class="field broad"><label for="to">Service</label> <input id="to" name="to" type="search" placeholder="namespace/service, or with :port" autocomplete="off" required></span>
<button type="submit">Show</button>
</form>
<p class="quiet">With From it is each decision about a connection, without it the picture from frontends to endpoints.</p>
</section>

<section aria-labelledby="list">
<h2 id="list">All nodes</h2>
`)
	b.search("/ui", v.Query, "name, version, mode or note")
	b.states(v.States, v.State)
	b.endSearch(v.Sort)
	v.table(b)
	b.pager(v.Pager)
	b.put(`</section>`)
}

func (v *clusterPage) problems(b *builder) {
	b.put(`<section aria-labelledby="problems-title">
<h2 id="problems-title">Problems</h2>
<ul class="problems">
`)
	for _, p := range v.Problems {
		b.put(`<li%s><span class="subject">%s</span> <b>%s</b> %s
<span class="on">on `, classed(className(p.State)), cmp.Or(p.Service, p.Object), p.Reason, p.Detail)
		for i, n := range p.On {
			b.put(`%s<a href="%s">%s</a>`, when(i > 0, ", "), n.To, n.Text)
		}
		if p.More > 0 {
			b.put(` and %d more`, p.More)
		}
		b.put(`</span></li>`)
	}
	b.put(`</ul>`)
	if v.More > 0 {
		b.put(`<p class="quiet">and %s more: the pages of the nodes have them.</p>`, grouped(v.More))
	}
	b.put(`</section>`)
}

func (v *clusterPage) table(b *builder) {
	b.scroll("Nodes")
	b.put(`<caption id="found" data-live>%s of %s nodes</caption>
<thead>`, grouped(v.Pager.Rows), grouped(v.Total))
	b.heads(v.Columns)
	b.put(`</thead>
<tbody id="rows" data-live>`)
	for _, r := range v.Rows {
		b.put(`<tr><th scope="row"><a href="%s">%s</a></th><td><span class="state %s">%s</span></td>`, r.Link, r.Node.Node, className(r.State), r.State)
		if r.Version != "" {
			b.put(`<td class="verb">%s</td><td class="verb">%s</td><td class="num">%s</td>`, r.Version, r.Mode, seconds(r.Lag))
			b.put(`<td class="num%s">%s</td><td class="num">%s</td>`, when(r.Drift == 0, " quiet"), grouped(r.Drift), grouped(r.NodeReport.Node.Services))
			b.put(`<td class="num%s">%s</td><td class="num%s">%s</td>`, when(r.Failing == 0, " quiet"), grouped(r.Failing), when(r.Partial == 0, " quiet"), grouped(r.Partial))
		} else {
			b.put(`<td class="quiet">–</td><td class="quiet">–</td>%s`, markup(strings.Repeat(`<td class="quiet num">–</td>`, 5)))
		}
		b.put(`<td class="note">%s</td></tr>`, r.Note)
	}
	if len(v.Rows) == 0 {
		b.put(`<tr><td colspan="10" class="quiet">No node fits.</td></tr>`)
	}
	b.endScroll()
}
