// SPDX-License-Identifier: Apache-2.0

// Package ui serves pages about a running Tandem, or a snapshot of one: Services with
// their frontends and endpoints, the last changes, and how long their stages took.
//
//	Source: answers of questions ──▶ view ──▶ /ui, /ui/service/NS/NAME, /ui/traffic, /ui/history, /ui/explain
//	a Source for each node ────────▶ the same below /node/NAME, and /ui of all nodes (cluster.go)
//	core/manual ──────────────────────────────────────────▶ /ui/docs, or files
//
// The pages only show: GET alone, no cookies, nothing from other sites, and a policy
// that keeps browsers from loading anything else. They work without JavaScript; with it, a page
// about a running Tandem is loaded again every few seconds, and its live parts are replaced in place.
package ui

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
)

// Source is the Tandem, or the snapshot of one, that pages are about: the questions that they ask it. It is safe for
// concurrent use.
type Source struct {
	Status   func(context.Context, question.Filter) (question.Status, error) // with the Services of the filter, or more
	Services func(context.Context, question.ServicesRequest) (question.Services, error)
	Changes  func(context.Context, history.Filter) (history.Document, error)
	Explain  func(context.Context, oracle.Question) (question.Explanation, error)
	Top      func(context.Context, question.TopRequest) (question.Top, error) // reads the kernel
	// Trace has the data plane read back: nil where whoever can see the pages may not have that done.
	Trace    func(context.Context, oracle.Question) (question.Trace, error)
	Recorded bool // it is of a file, and stays unchanged
}

// Input is a document with its status, of which making one takes a while.
type Input struct {
	Status   question.Status
	Document *question.Document
}

// InputOf is that of a document.
func InputOf(d *question.Document) *Input { return &Input{question.StatusOf(d, question.Filter{}), d} }

// Of is the Source whose answers are those about the present Input.
func Of(input func(context.Context) (*Input, error)) Source {
	return Source{
		Status: func(ctx context.Context, _ question.Filter) (s question.Status, err error) {
			in, err := input(ctx)
			if err != nil {
				return s, err
			}
			return in.Status, nil
		},
		Services: about(input, question.ListServices()), Changes: about(input, question.ListChanges()), Explain: about(input, question.Explain()),
		Top: about(input, question.CountConnections()), Trace: about(input, question.TracePacket()),
	}
}

// about answers a question about the present Input.
func about[P, A any](input func(context.Context) (*Input, error), v question.Verb[P, A]) func(context.Context, P) (A, error) {
	return func(ctx context.Context, parameters P) (a A, err error) {
		in, err := input(ctx)
		if err != nil {
			return a, err
		}
		return v.Answer(ctx, in.Document, parameters)
	}
}

//go:embed assets
var assets embed.FS

// policy allows the page its own style and script, its own pages again, and forms that lead back to it.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Handler serves the pages below /ui.
func Handler(from Source) http.Handler {
	p := &pages{of: func(*http.Request) (Source, error) { return from, nil }}
	mux := http.NewServeMux()
	p.register(mux, "")
	newBook(true).register(mux)
	registerAssets(mux)
	return secured(mux)
}

// register serves pages below an address.
func (p *pages) register(mux *http.ServeMux, root string) {
	for path, page := range map[string]http.HandlerFunc{
		"": p.overview, "/{$}": p.overview, "/service/{namespace}/{name}": p.service, "/traffic": p.traffic, "/history": p.history, "/explain": p.explain,
	} {
		mux.HandleFunc("GET "+root+"/ui"+path, page)
	}
}

// registerAssets serves what all pages load.
func registerAssets(mux *http.ServeMux) {
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8"} {
		mux.HandleFunc("GET /ui/"+name, func(w http.ResponseWriter, _ *http.Request) { asset(w, name, kind) })
	}
}

// secured sets the headers that all answers have, and answers nothing but GET.
func secured(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		if from := r.Header.Get("Sec-Fetch-Site"); from != "" && from != "same-origin" && from != "none" && r.Header.Get("Sec-Fetch-Dest") != "document" {
			http.Error(w, "pages of other sites load nothing here", http.StatusForbidden)
			return
		}
		if r.Method != http.MethodGet {
			header.Set("Allow", http.MethodGet)
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func asset(w http.ResponseWriter, name, kind string) {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text) // fails only when the client is gone
}

// pages answers requests about a Tandem.
type pages struct {
	of    func(*http.Request) (Source, error)
	many  bool // below /node/NAME, one of many
	looks looks
}

// The seconds after which a page is loaded again: of one node, and of many, where it goes through an API server.
const (
	period     = 3
	manyPeriod = 10
)

// none selects no Services: there is no such namespace.
func none() question.Filter { return question.Filter{Namespace: "/"} }

// begin is what a request is about, and what all of its pages have. Where there is no answer, the request gets that.
func (p *pages) begin(w http.ResponseWriter, r *http.Request, title, here string, only question.Filter) (from Source, s shell, ok bool) {
	s = shell{Title: title, Here: here, Subject: r.PathValue("node"), Many: p.many, Period: period}
	if p.many {
		s.Root, s.Period = nodeRoot(s.Subject), manyPeriod
	}
	from, err := p.of(r)
	var status question.Status
	if err == nil {
		status, err = from.Status(r.Context(), only)
	}
	if err != nil {
		silent(w, s, err)
		return from, s, false
	}
	s.Status, s.Subject, s.Healthy, s.Health, s.Reasons = &status, cmp.Or(s.Subject, status.Node), status.Healthy, "healthy", status.Reasons
	if !s.Healthy {
		s.Health = "not healthy"
	}
	if s.Total = max(status.Total, len(status.Services)); from.Recorded {
		s.Recorded, s.Period = true, 0
	}
	return from, s, true
}

// silent is the page in the place of one without an answer. A node that is too old for a page has answered that.
func silent(w http.ResponseWriter, s shell, err error) {
	if errors.Is(err, question.ErrOlder) {
		s.Err, s.Health = s.older(), cmp.Or(s.Health, "not known")
		render(w, http.StatusNotFound, &silentPage{s})
		return
	}
	s.Title, s.Err, s.Healthy, s.Health = "No answer", err, false, "no answer"
	render(w, http.StatusServiceUnavailable, &silentPage{s})
}

// older says that a node's tandem does not know what a page asks.
func (s *shell) older() error {
	version := "of an unknown version"
	if s.Status != nil {
		version = s.Status.Version
	}
	return fmt.Errorf("node %s runs tandem %s, which does not know what this page asks: a newer version does", s.Subject, version)
}

// recent is how many changes the first page is made of: the others are on their own.
const recent = 2000

func (p *pages) overview(w http.ResponseWriter, r *http.Request) {
	from, s, ok := p.begin(w, r, "Services", "services", question.Filter{})
	if !ok {
		return
	}
	changes, err := from.Changes(r.Context(), history.Filter{Limit: recent})
	if err != nil {
		silent(w, s, err)
		return
	}
	q := r.URL.Query()
	render(w, http.StatusOK, overviewOf(s, changes, q.Get("q"), q.Get("state"), q.Get("sort"), number(q.Get("page"))))
}

func (p *pages) service(w http.ResponseWriter, r *http.Request) {
	namespace, short := r.PathValue("namespace"), r.PathValue("name")
	v := servicePage{Name: namespace + "/" + short}
	from, s, ok := p.begin(w, r, v.Name, "services", question.Filter{Namespace: namespace, Name: short})
	if !ok {
		return
	}
	v.shell = s
	i := slices.IndexFunc(s.Status.Services, func(s question.Service) bool { return s.Name == v.Name })
	if i < 0 {
		v.Title = "No Service " + v.Name
		render(w, http.StatusNotFound, &v)
		return
	}
	v.Service = &s.Status.Services[i]
	found, err := from.Services(r.Context(), question.ServicesRequest{Service: v.Name})
	if err == nil && len(found.Services) != 1 {
		err = fmt.Errorf("the answer has %d Services, want one", len(found.Services))
	}
	var changes history.Document
	if err == nil {
		changes, err = from.Changes(r.Context(), history.Filter{Service: model.ServiceName{Namespace: namespace, Name: short}, Limit: 20})
	}
	if err != nil {
		silent(w, s, err)
		return
	}
	v.of(&found.Services[0], changes.Entries, number(r.URL.Query().Get("page")))
	render(w, http.StatusOK, &v)
}

func (p *pages) history(w http.ResponseWriter, r *http.Request) {
	from, s, ok := p.begin(w, r, "Changes", "history", none())
	if !ok {
		return
	}
	changes, err := from.Changes(r.Context(), history.Filter{})
	if err != nil {
		silent(w, s, err)
		return
	}
	q := r.URL.Query()
	render(w, http.StatusOK, historyOf(s, changes.Entries, q.Get("q"), q.Get("failed") != "", number(q.Get("page"))))
}

// number reads the number of a page, 1 where there is none.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// How many rows a table has: one with pages, and one without.
const (
	perPage = 50
	maxRows = 100
)

// shell is what all pages have.
type shell struct {
	Title    string
	Here     string // the entry of the navigation
	Root     string // what the addresses of a node's pages begin with
	Many     bool   // it is one of many nodes, or all of them
	Subject  string // the node, or the cluster
	Healthy  bool
	Health   string
	Reasons  []string
	Status   *question.Status // nil where there is none
	Err      error            // why
	Recorded bool
	Period   int // seconds after which it is loaded again; 0 for never
	Total    int // Services, or nodes
}

// pager leads to other pages of a table.
type pager struct {
	Page, Pages, Rows int
	path              string
	query             url.Values
}

// paged cuts the rows of a page out of all.
func paged[T any](all []T, page int, path string, query url.Values) ([]T, pager) {
	p := pager{Rows: len(all), Pages: max(1, (len(all)+perPage-1)/perPage), path: path, query: query}
	p.Page = min(page, p.Pages)
	first := (p.Page - 1) * perPage
	return all[first:min(first+perPage, len(all))], p
}

// to is the address of a page.
func (p pager) to(page int) string {
	q := url.Values{"page": {fmt.Sprint(page)}}
	maps.Copy(q, p.query)
	return address(p.path, q)
}

// address is one with a query, without what is empty in it.
func address(path string, query url.Values) string {
	q := url.Values{}
	for key, values := range query {
		if values[0] != "" {
			q[key] = values
		}
	}
	return path + "?" + q.Encode()
}

// overview is the page of all Services.
type overview struct {
	shell
	Query, State, Sort string
	States             []count
	Columns            []column
	Problems           []problem // the first ones
	More               int       // problems besides
	Problematic        int       // Services that have any
	Rows               []serviceRow
	Pager              pager
	Hour               []graph
	Stages             []histogram
	Changes            []history.Entry // newest first
}

type count struct {
	State string
	N     int
	Link  string // to the Services in that state
}

// column is a column that the table of Services can be sorted by.
type column struct {
	Title, Link string
	Sorted      bool
	Number      bool
}

// problem is one of a Service.
type problem struct {
	Service, State, Link string
	question.Problem
}

// maxProblems is how many problems the overview, and the page of all nodes, list.
const maxProblems = 8

type serviceRow struct {
	*question.Service
	Link string
}

func overviewOf(s shell, changes history.Document, query, state, sort string, page int) *overview {
	v := &overview{
		shell: s, Query: query, State: state, Sort: sort,
		Hour: hour(changes.Hour), Stages: histograms(changes.Entries), Changes: newest(changes.Entries, 8),
	}
	services, root := s.Status.Services, s.Root+"/ui"
	counts := map[string]int{}
	var found []ranked
	words := strings.Fields(strings.ToLower(query))
	for i := range services {
		s := &services[i]
		counts[s.State]++
		if len(s.Problems) > 0 {
			v.Problematic++
			v.More += len(s.Problems)
		}
		if (state == "" || s.State == state) && matches(s, words) {
			found = append(found, ranked{i, rankOf(s, sort)})
		}
	}
	for s := range model.States {
		v.count(model.State(s).String(), counts)
	}
	v.count(question.Pending, counts)
	slices.SortStableFunc(found, func(a, b ranked) int { return cmp.Compare(a.key, b.key) }) // by name already
	v.Columns = []column{{Title: "Service", Link: "name"}, {Title: "State", Link: "state"}, {Title: "Frontends", Link: "frontends"}, {Title: "Ready", Link: "ready", Number: true}, {Title: "Not ready", Number: true}}
	for i := range v.Columns {
		if c := &v.Columns[i]; c.Link != "" {
			c.Sorted = c.Link == cmp.Or(sort, "state")
			c.Link = address(root, url.Values{"q": {query}, "state": {state}, "sort": {c.Link}})
		}
	}
	rows, p := paged(found, page, root, url.Values{"q": {query}, "state": {state}, "sort": {sort}})
	v.Pager = p
	for _, r := range rows {
		v.Rows = append(v.Rows, serviceRow{&services[r.i], root + "/service/" + services[r.i].Name})
	}
	v.Problems = problemsOf(services, root)
	v.More -= len(v.Problems)
	return v
}

// count adds how many Services are in a state.
func (v *overview) count(state string, counts map[string]int) {
	v.States = append(v.States, count{state, counts[state], address(v.Root+"/ui", url.Values{"state": {state}})})
}

// ranked is a Service by its place in the status, with what the table is sorted by.
type ranked struct{ i, key int }

// rankOf is what a Service is sorted by: in the order of states what fails comes first.
func rankOf(s *question.Service, sort string) int {
	switch sort {
	case "name":
		return 0
	case "frontends":
		return -len(s.Frontends)
	case "ready":
		return s.Ready
	}
	return slices.Index(question.States(), s.State)
}

// problemsOf are the first problems, those of the most urgent Services first.
func problemsOf(all []question.Service, root string) (first []problem) {
	for _, state := range question.States() {
		for i := range all {
			if all[i].State != state {
				continue
			}
			for _, p := range all[i].Problems {
				if len(first) == maxProblems {
					return first
				}
				first = append(first, problem{all[i].Name, state, root + "/service/" + all[i].Name, p})
			}
		}
	}
	return first
}

// hasAll reports whether a text has all words, which are in lower case.
func hasAll(text string, words []string) bool {
	text = strings.ToLower(text)
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// matches reports whether a Service has all words, in its name or an address.
func matches(s *question.Service, words []string) bool {
	for _, w := range words {
		in := strings.Contains(strings.ToLower(s.Name), w)
		for i := 0; !in && i < len(s.Frontends); i++ {
			in = strings.Contains(s.Frontends[i].Address, w)
		}
		if !in {
			return false
		}
	}
	return true
}

// newest returns the last entries, newest first.
func newest(all []history.Entry, n int) []history.Entry {
	last := slices.Clone(all[max(0, len(all)-n):])
	slices.Reverse(last)
	return last
}

// servicePage is the page of one Service.
type servicePage struct {
	shell
	Name      string
	Service   *question.Service // nil when there is none
	Endpoints []endpoint
	Pager     pager
	Picture   markup
	Changes   []history.Entry
}

// endpoint is a row of a Service's endpoints: one for a port.
type endpoint struct {
	question.EndpointDetail
	Family, State string
}

// of fills in what is answered about the Service.
func (v *servicePage) of(d *question.ServiceDetail, changes []history.Entry, page int) {
	all := make([]endpoint, 0, len(d.Endpoints))
	for _, e := range d.Endpoints {
		row := endpoint{EndpointDetail: e, Family: familyOf(e.Address), State: stateOf(&e)}
		if at, err := netip.ParseAddrPort(e.Address); err == nil && at.Port() == 0 {
			row.Address = at.Addr().String()
		}
		all = append(all, row)
	}
	slices.SortStableFunc(all, func(a, b endpoint) int {
		if a.Used != b.Used {
			return map[bool]int{true: -1, false: 1}[a.Used]
		}
		return cmp.Compare(a.Address, b.Address)
	})
	v.Picture = picture(v.Name, v.Service.State, d.Frontends, all)
	v.Endpoints, v.Pager = paged(all, page, v.Root+"/ui/service/"+v.Name, nil)
	v.Changes = newest(changes, 20)
}

// familyOf is the family of an address with a port; empty for a node port, which has none.
func familyOf(address string) string {
	at, err := netip.ParseAddrPort(address)
	switch {
	case err != nil:
		return ""
	case at.Addr().Is4():
		return model.IPv4.String()
	}
	return model.IPv6.String()
}

func stateOf(e *question.EndpointDetail) string {
	has := func(condition string) bool { return slices.Contains(e.Conditions, condition) }
	switch {
	case e.Unanswered:
		return "unanswered"
	case has("ready"):
		return "ready"
	case has("terminating") && has("serving"):
		return "terminating"
	}
	return "not ready"
}

// explainPage is the page that explains a connection.
type explainPage struct {
	shell
	From, To    string
	Explanation *question.Explanation // nil before the first question, and after an error
	Trace       *question.Trace       // nil unless it was asked for
	Traces      bool                  // it can be
	Wrong       error                 // with the question
}

func (p *pages) explain(w http.ResponseWriter, r *http.Request) {
	from, s, ok := p.begin(w, r, "Explain", "explain", none())
	if !ok {
		return
	}
	q := r.URL.Query()
	v := explainPage{shell: s, From: q.Get("from"), To: q.Get("to"), Traces: from.Trace != nil}
	code, asked := http.StatusOK, oracle.Question{From: v.From, To: v.To}
	switch {
	case v.From == "" && v.To == "":
	case v.Traces && q.Get("trace") != "":
		v.Period = 0 // the data plane is read on request, not periodically
		t, err := from.Trace(r.Context(), asked)
		if v.Wrong = err; err == nil {
			v.Explanation, v.Trace = &t.Explanation, &t
		}
	default:
		e, err := from.Explain(r.Context(), asked)
		if v.Wrong = err; err == nil {
			v.Explanation = &e
		}
	}
	switch {
	case errors.Is(v.Wrong, question.ErrOlder):
		v.Wrong, code = s.older(), http.StatusNotFound
	case v.Wrong != nil:
		code = http.StatusBadRequest
	}
	render(w, code, &v)
}

// historyPage is the page of the last changes.
type historyPage struct {
	shell
	Query   string
	Failed  bool
	Changes []history.Entry
	Pager   pager
	Stages  []histogram
}

func historyOf(s shell, all []history.Entry, query string, failed bool, page int) *historyPage {
	v := &historyPage{shell: s, Query: query, Failed: failed, Stages: histograms(all)}
	var found []history.Entry
	word := strings.ToLower(strings.TrimSpace(query))
	for i := len(all) - 1; i >= 0; i-- {
		e := &all[i]
		if failed && (e.Sync == nil || e.Sync.Failed == 0 && e.Sync.Err == "") {
			continue
		}
		if word == "" || strings.Contains(strings.ToLower(e.Object+" "+e.Service+" "+e.Kind), word) {
			found = append(found, *e)
		}
	}
	q := url.Values{"q": {query}}
	if failed {
		q.Set("failed", "1")
	}
	v.Changes, v.Pager = paged(found, page, s.Root+"/ui/history", q)
	return v
}
