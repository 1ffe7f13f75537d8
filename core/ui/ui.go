// SPDX-License-Identifier: Apache-2.0

// Package ui serves pages about a running Tandem, or a snapshot of one: Services with
// their frontends and endpoints, the last changes, and how long their stages took.
//
//	Source ──Input──▶ view ──html/template──▶ /ui, /ui/service/NS/NAME, /ui/history, /ui/explain
//	core/manual ──────────────────────────▶ /ui/docs, or files
//
// The pages only show: GET alone, no cookies, nothing from other sites, and a policy
// that keeps browsers from loading anything else. They work without JavaScript; with it, a page
// about a running Tandem is loaded again every few seconds, and its live parts are replaced in place.
package ui

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
)

// Input is what pages are made of. It is not changed.
type Input struct {
	Status   question.Status
	Host     *model.Host
	Services []*track.View  // by name
	Suspects model.Suspects // endpoints that have stopped answering
	History  history.Document
	Document *question.Document
	Snapshot bool // it is of a file, and stays unchanged
}

// InputOf is that of a document.
func InputOf(d *question.Document) *Input {
	return &Input{
		Status: question.StatusOf(d, question.Filter{}), Host: d.Host, Services: d.Services, Suspects: d.Suspects, History: d.Changes(history.Filter{}),
		Document: d, Snapshot: d.Recorded != nil,
	}
}

// Source returns the present Input. It is safe for concurrent use.
type Source func(context.Context) (*Input, error)

//go:embed assets
var assets embed.FS

// policy allows the page its own style and script, its own pages again, and forms that lead back to it.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Handler serves the pages below /ui.
func Handler(from Source) http.Handler {
	p := &pages{from: from, templates: parsed()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ui", p.overview)
	mux.HandleFunc("GET /ui/{$}", p.overview)
	mux.HandleFunc("GET /ui/service/{namespace}/{name}", p.service)
	mux.HandleFunc("GET /ui/history", p.history)
	mux.HandleFunc("GET /ui/explain", p.explain)
	newBook(p.templates, true).register(mux)
	registerAssets(mux)
	return secured(mux)
}

// registerAssets serves what all pages load.
func registerAssets(mux *http.ServeMux) {
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8"} {
		mux.HandleFunc("GET /ui/"+name, func(w http.ResponseWriter, _ *http.Request) { asset(w, name, kind) })
	}
}

func parsed() *template.Template {
	return template.Must(template.New("").Funcs(functions()).ParseFS(assets, "assets/*.html"))
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

// pages answers requests.
type pages struct {
	from      Source
	templates *template.Template
}

// input is the present one; where there is none the request is answered.
func (p *pages) input(w http.ResponseWriter, r *http.Request) *Input {
	in, err := p.from(r.Context())
	if err != nil {
		http.Error(w, "status unavailable: "+err.Error(), http.StatusServiceUnavailable)
		return nil
	}
	return in
}

func (p *pages) overview(w http.ResponseWriter, r *http.Request) {
	if in := p.input(w, r); in != nil {
		q := r.URL.Query()
		p.render(w, http.StatusOK, "overview.html", overviewOf(in, q.Get("q"), q.Get("state"), q.Get("sort"), number(q.Get("page"))))
	}
}

func (p *pages) service(w http.ResponseWriter, r *http.Request) {
	in := p.input(w, r)
	if in == nil {
		return
	}
	name := r.PathValue("namespace") + "/" + r.PathValue("name")
	v, ok := serviceOf(in, name, number(r.URL.Query().Get("page")))
	code := http.StatusOK
	if !ok {
		code = http.StatusNotFound
	}
	p.render(w, code, "service.html", v)
}

func (p *pages) history(w http.ResponseWriter, r *http.Request) {
	if in := p.input(w, r); in != nil {
		q := r.URL.Query()
		p.render(w, http.StatusOK, "history.html", historyOf(in, q.Get("q"), q.Get("failed") != "", number(q.Get("page"))))
	}
}

// render writes a page whole, or an error in its place.
func (p *pages) render(w http.ResponseWriter, code int, name string, v any) {
	var b bytes.Buffer
	if err := p.templates.ExecuteTemplate(&b, name, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = b.WriteTo(w)
}

// number reads the number of a page, 1 where there is none.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// perPage is how many rows a table has.
const perPage = 50

// shell is what all pages have.
type shell struct {
	Title    string
	Here     string // the entry of the navigation
	Status   *question.Status
	Snapshot bool
	Total    int // Services
}

func shellOf(in *Input, title, here string) shell {
	return shell{Title: title, Here: here, Status: &in.Status, Snapshot: in.Snapshot, Total: len(in.Status.Services)}
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

// To is the address of a page.
func (p pager) To(page int) string {
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

// Before and After are the numbers of the neighbours; 0 for none.
func (p pager) Before() int { return p.Page - 1 }

// After is the next page's number; 0 for none.
func (p pager) After() int {
	if p.Page == p.Pages {
		return 0
	}
	return p.Page + 1
}

// overview is the page of all Services.
type overview struct {
	shell
	Query, State, Sort string
	States             []count
	Columns            []column
	Problems           []problem // the first ones
	Problematic        int       // Services that have any
	Rows               []serviceRow
	Pager              pager
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
	Service, Link string
	question.Problem
}

// maxProblems is how many problems the overview lists.
const maxProblems = 8

type serviceRow struct {
	*question.Service
	Link         string
	Ready, Other int // endpoints
}

func overviewOf(in *Input, query, state, sort string, page int) overview {
	v := overview{shell: shellOf(in, "Services", "services"), Query: query, State: state, Sort: sort, Stages: histograms(in.History.Entries)}
	rowOf := func(i int) serviceRow {
		row := serviceRow{Service: &in.Status.Services[i], Link: "/ui/service/" + in.Status.Services[i].Name}
		if t := find(in.Services, row.Name); t != nil {
			row.count(t)
		}
		return row
	}
	counts := map[string]int{}
	var found []ranked
	words := strings.Fields(strings.ToLower(query))
	for i := range in.Status.Services {
		s := &in.Status.Services[i]
		counts[s.State]++
		if len(s.Problems) > 0 {
			v.Problematic++
		}
		if (state == "" || s.State == state) && matches(s, words) {
			found = append(found, ranked{i, rankOf(s, sort, func() int { return rowOf(i).Ready })})
		}
	}
	for s := range model.States {
		v.count(model.State(s).String(), counts)
	}
	v.count(question.Pending, counts)
	slices.SortStableFunc(found, func(a, b ranked) int { return cmp.Compare(a.key, b.key) }) // by name already
	v.Columns = []column{{Title: "Service", Link: "name"}, {Title: "Frontends", Link: "frontends"}, {Title: "Ready", Link: "ready", Number: true}, {Title: "Not ready", Number: true}, {Title: "State", Link: "state"}}
	for i := range v.Columns {
		if c := &v.Columns[i]; c.Link != "" {
			c.Sorted = c.Link == cmp.Or(sort, "state")
			c.Link = address("/ui", url.Values{"q": {query}, "state": {state}, "sort": {c.Link}})
		}
	}
	rows, p := paged(found, page, "/ui", url.Values{"q": {query}, "state": {state}, "sort": {sort}})
	v.Pager = p
	for _, r := range rows {
		v.Rows = append(v.Rows, rowOf(r.i))
	}
	v.Problems = problemsOf(in.Status.Services)
	v.Changes = newest(in.History.Entries, 8)
	return v
}

// count adds how many Services are in a state.
func (v *overview) count(state string, counts map[string]int) {
	v.States = append(v.States, count{state, counts[state], address("/ui", url.Values{"state": {state}})})
}

// ranked is a Service by its place in the status, with what the table is sorted by.
type ranked struct{ i, key int }

// rankOf is what a Service is sorted by: in the order of states what fails comes first.
func rankOf(s *question.Service, sort string, ready func() int) int {
	switch sort {
	case "name":
		return 0
	case "frontends":
		return -len(s.Frontends)
	case "ready":
		return ready()
	}
	return slices.Index(question.States(), s.State)
}

// problemsOf are the first problems, those of the most urgent Services first.
func problemsOf(all []question.Service) (first []problem) {
	for _, state := range question.States() {
		for i := range all {
			if all[i].State != state {
				continue
			}
			for _, p := range all[i].Problems {
				if len(first) == maxProblems {
					return first
				}
				first = append(first, problem{all[i].Name, "/ui/service/" + all[i].Name, p})
			}
		}
	}
	return first
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

func find(all []*track.View, name string) *track.View {
	namespace, short, _ := strings.Cut(name, "/")
	wanted := model.ServiceName{Namespace: namespace, Name: short}
	i, ok := slices.BinarySearchFunc(all, wanted, func(s *track.View, n model.ServiceName) int { return s.Object.Name.Compare(n) })
	if !ok {
		return nil
	}
	return all[i]
}

func (r *serviceRow) count(s *track.View) {
	for _, slice := range s.Slices {
		for i := range slice.Endpoints {
			if slice.Endpoints[i].State.Has(model.Ready) {
				r.Ready++
			} else {
				r.Other++
			}
		}
	}
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
	Object    *model.Service
	Endpoints []endpoint
	Pager     pager
	Picture   template.HTML
	Changes   []history.Entry
}

// endpoint is a row of a Service's endpoints: one for a port.
type endpoint struct {
	Port                 model.PortID
	Address, Node, State string
	Used                 bool
	Share                float64 // of its port's new connections, by this node
	Why                  string  // not used
}

func serviceOf(in *Input, name string, page int) (v servicePage, ok bool) {
	v = servicePage{shell: shellOf(in, name, "services"), Name: name}
	i := slices.IndexFunc(in.Status.Services, func(s question.Service) bool { return s.Name == name })
	if i < 0 {
		v.Title = "No Service " + name
		return v, false
	}
	v.Service = &in.Status.Services[i]
	all := []endpoint{}
	if t := find(in.Services, name); t != nil {
		v.Object = t.Object
		all = endpoints(in, t)
		v.Picture = picture(v.Service, t.Ports, all)
	}
	v.Endpoints, v.Pager = paged(all, page, "/ui/service/"+name, nil)
	v.Changes = newest(in.History.Select(history.Filter{Service: serviceName(name)}).Entries, 20)
	return v, true
}

func serviceName(name string) model.ServiceName {
	namespace, short, _ := strings.Cut(name, "/")
	return model.ServiceName{Namespace: namespace, Name: short}
}

// endpoints lists the endpoints of each port of a Service with what becomes of them here.
func endpoints(in *Input, s *track.View) []endpoint {
	type target struct {
		port model.PortID
		at   netip.AddrPort
	}
	share := map[target]float64{}
	for _, p := range s.Ports {
		for _, pool := range p.Pools() {
			for i, e := range pool.Endpoints {
				if at := (target{p.ID, e.Addr}); share[at] == 0 {
					share[at] = pool.Share(i)
				}
			}
		}
	}
	all := []endpoint{}
	for _, u := range resolve.EndpointUses(in.Host, resolve.MarkUnanswered(s.Slices, in.Suspects), s.Ports) {
		row := endpoint{Port: u.Port, Address: u.Addr.String(), Node: cmp.Or(u.Node, "unknown"), State: stateOf(u.State), Used: u.Used, Why: u.Why}
		if u.Addr.Port() == 0 {
			row.Address = u.Addr.Addr().String()
		}
		if u.Used {
			row.Share = share[target{u.Port, u.Addr}]
		}
		all = append(all, row)
	}
	slices.SortStableFunc(all, func(a, b endpoint) int {
		if a.Used != b.Used {
			return map[bool]int{true: -1, false: 1}[a.Used]
		}
		return cmp.Compare(a.Address, b.Address)
	})
	return all
}

func stateOf(s model.EndpointState) string {
	switch {
	case s.Has(model.Unanswered):
		return "unanswered"
	case s.Has(model.Ready):
		return "ready"
	case s.Has(model.Terminating) && s.Has(model.Serving):
		return "terminating"
	}
	return "not ready"
}

// explainPage is the page that explains a connection.
type explainPage struct {
	shell
	From, To    string
	Explanation *question.Explanation // nil before the first question, and after an error
	Err         error
}

func (p *pages) explain(w http.ResponseWriter, r *http.Request) {
	in := p.input(w, r)
	if in == nil {
		return
	}
	q := r.URL.Query()
	v := explainPage{shell: shellOf(in, "Explain", "explain"), From: q.Get("from"), To: q.Get("to")}
	code := http.StatusOK
	if v.From != "" || v.To != "" {
		e, err := question.Explain().Answer(r.Context(), in.Document, oracle.Question{From: v.From, To: v.To})
		if v.Err = err; err == nil {
			v.Explanation = &e
		} else {
			code = http.StatusBadRequest
		}
	}
	p.render(w, code, "explain.html", v)
}

// historyPage is the page of the last changes.
type historyPage struct {
	shell
	Query  string
	Failed bool
	Rows   []history.Entry
	Pager  pager
	Stages []histogram
}

func historyOf(in *Input, query string, failed bool, page int) historyPage {
	v := historyPage{shell: shellOf(in, "Changes", "history"), Query: query, Failed: failed, Stages: histograms(in.History.Entries)}
	var found []history.Entry
	word := strings.ToLower(strings.TrimSpace(query))
	for i := len(in.History.Entries) - 1; i >= 0; i-- {
		e := &in.History.Entries[i]
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
	v.Rows, v.Pager = paged(found, page, "/ui/history", q)
	return v
}

func functions() template.FuncMap {
	return template.FuncMap{
		"short":   history.Short,
		"clock":   func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
		"percent": func(f float64) string { return fmt.Sprintf("%.3g %%", 100*f) },
		"class":   func(s string) string { return strings.ToLower(strings.ReplaceAll(s, " ", "-")) },
		"sources": question.ShowSources,
		"seconds": func(s float64) string { return history.Short(history.Seconds(s)) },
	}
}
