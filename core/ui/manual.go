// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/tandem-proxy/tandem/core/manual"
)

// book serves the manual below /ui/docs, or writes it as files.
type book struct {
	manual    func() *manual.Manual // read when it is first asked for
	templates *template.Template
	docs      func(page, anchor string) string // the address of a page
	root      string                           // where style and script are
	search    string                           // the page that answers searches
	live      bool                             // there are pages about a proxy, too
	many      bool                             // about those of many nodes
}

func newBook(templates *template.Template, live bool) *book {
	return &book{manual: sync.OnceValue(manual.New), templates: templates, docs: served, root: "/ui/", search: "/ui/docs/search", live: live}
}

func served(page, anchor string) string {
	if page == manual.Index {
		page = ""
	}
	return "/ui/docs/" + page + fragment(anchor)
}

func fragment(anchor string) string {
	if anchor == "" {
		return ""
	}
	return "#" + anchor
}

// Manual serves the manual alone, without a proxy to tell of.
func Manual() http.Handler {
	mux := http.NewServeMux()
	newBook(parsed(), false).register(mux)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ui/docs/", http.StatusFound) })
	registerAssets(mux)
	return secured(mux)
}

func (b *book) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /ui/docs", func(w http.ResponseWriter, _ *http.Request) { b.page(w, manual.Index) })
	mux.HandleFunc("GET /ui/docs/{$}", func(w http.ResponseWriter, _ *http.Request) { b.page(w, manual.Index) })
	mux.HandleFunc("GET /ui/docs/{page}", func(w http.ResponseWriter, r *http.Request) { b.page(w, r.PathValue("page")) })
	mux.HandleFunc("GET /ui/docs/search", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query().Get("q")
		v := b.view("Search", "")
		v.Query, v.Searched, v.Hits = q, true, b.manual().Search(q)
		b.answer(w, http.StatusOK, v)
	})
}

// manualPage is a page of the manual, or what a search has found.
type manualPage struct {
	Title, Here, Query string
	Body               template.HTML
	Sections           []manual.Section // of the page
	Searched           bool
	Hits               []manual.Hit
	Chapters           []manual.Chapter
	Root, Search       string
	Live, Many, Static bool
	book               *book
}

// To is the address of a page, for the template.
func (p manualPage) To(page, anchor string) string { return p.book.docs(page, anchor) }

func (b *book) view(title, here string) manualPage {
	return manualPage{Title: title, Here: here, Chapters: b.manual().Chapters, Root: b.root, Search: b.search, Live: b.live, Many: b.many, Static: b.root == "", book: b}
}

// show is the view of a page.
func (b *book) show(p *manual.Page) (manualPage, error) {
	v := b.view(p.Title, p.Name)
	body, err := p.HTML(b.docs)
	v.Body = template.HTML(body) //nolint:gosec // of our own pages, without raw HTML
	if all := p.Sections()[1:]; len(all) > 2 && p.Name != manual.Index {
		v.Sections = all
	}
	return v, err
}

func (b *book) page(w http.ResponseWriter, name string) {
	p := b.manual().Find(name)
	if p == nil {
		v := b.view("No such page", "")
		v.Searched, v.Query = true, name
		v.Hits = b.manual().Search(name)
		b.answer(w, http.StatusNotFound, v)
		return
	}
	v, err := b.show(p)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	b.answer(w, http.StatusOK, v)
}

func (b *book) answer(w http.ResponseWriter, code int, v manualPage) {
	text, err := b.execute(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(text) // fails only when the client is gone
}

func (b *book) execute(v manualPage) ([]byte, error) {
	var text bytes.Buffer
	err := b.templates.ExecuteTemplate(&text, "manual.html", v)
	return text.Bytes(), err
}

// WriteManual writes the manual into a folder, as pages that need no server: index.html,
// a page of each name, and search.html, whose script looks through all sections.
func WriteManual(dir string) error {
	b := newBook(parsed(), false)
	b.root, b.search = "", "search.html"
	b.docs = func(page, anchor string) string {
		if page == manual.Index {
			page = "index"
		}
		return page + ".html" + fragment(anchor)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, p := range append(b.manual().Pages(), b.manual().Find(manual.Index)) {
		v, err := b.show(p)
		if err == nil {
			files[b.docs(p.Name, "")], err = b.execute(v)
		}
		if err != nil {
			return fmt.Errorf("page %s: %w", p.Name, err)
		}
	}
	v := b.view("Search", "")
	v.Searched = true
	var err error
	if files["search.html"], err = b.execute(v); err != nil {
		return err
	}
	type section struct {
		Page    string `json:"page"`
		Title   string `json:"title"`
		Heading string `json:"heading"`
		To      string `json:"to"`
		Text    string `json:"text"`
	}
	var all []section
	for _, p := range b.manual().Pages() {
		for _, s := range p.Sections() {
			all = append(all, section{p.Name, p.Title, s.Heading, b.docs(p.Name, s.Anchor), s.Text})
		}
	}
	list, err := json.Marshal(all)
	if err != nil {
		return err
	}
	files["sections.js"] = fmt.Appendf(nil, "\"use strict\";\nconst sections = %s;\n", list)
	for _, name := range []string{"style.css", "script.js", "search.js"} {
		if files[name], err = assets.ReadFile("assets/" + name); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil { //nolint:gosec // everybody may read it
			return err
		}
	}
	return nil
}
