// SPDX-License-Identifier: Apache-2.0

// Package ui serves pages about a running Tandem, or a snapshot of one: Services with
// their frontends and endpoints, the last changes, and how long their stages took.
//
//	Source ──Input──▶ view ──html/template──▶ /ui, /ui/service/NS/NAME, /ui/history
//
// The pages only show: GET alone, no cookies, nothing from other sites, and a policy
// that keeps browsers from loading anything else. They work without JavaScript.
package ui

import (
	"bytes"
	"context"
	"embed"
	"html/template"
	"net/http"
	"strconv"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/track"
)

// Input is what pages are made of. It is not changed.
type Input struct {
	Status   status.Document
	Host     *model.Host
	Services []*track.View  // by name
	Suspects model.Suspects // endpoints that have stopped answering
	History  history.Document
	Snapshot bool // it is of a file, and stays unchanged
}

// Source returns the present Input. It is safe for concurrent use.
type Source func(context.Context) (*Input, error)

//go:embed assets
var assets embed.FS

// policy allows the page its own style and script, and forms that lead back to it.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Handler serves the pages below /ui.
func Handler(from Source) http.Handler {
	p := &pages{from: from, templates: template.Must(template.New("").Funcs(functions()).ParseFS(assets, "assets/*.html"))}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ui", p.overview)
	mux.HandleFunc("GET /ui/{$}", p.overview)
	mux.HandleFunc("GET /ui/service/{namespace}/{name}", p.service)
	mux.HandleFunc("GET /ui/history", p.history)
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8"} {
		mux.HandleFunc("GET /ui/"+name, func(w http.ResponseWriter, _ *http.Request) { asset(w, name, kind) })
	}
	return secured(mux)
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
		p.render(w, http.StatusOK, "overview.html", overviewOf(in, q.Get("q"), q.Get("state"), number(q.Get("page"))))
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
