// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/tandem-proxy/tandem/core/manual"
)

// book serves the manual below /ui/docs, or writes it as files.
type book struct {
	manual func() *manual.Manual            // read when it is first asked for
	docs   func(page, anchor string) string // the address of a page
	root   string                           // where style and script are
	search string                           // the page that answers searches
	live   bool                             // there are pages about a proxy, too
	many   bool                             // about those of many nodes
}

func newBook(live bool) *book {
	return &book{manual: sync.OnceValue(manual.New), docs: served, root: "/ui/", search: "/ui/docs/search", live: live}
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
	newBook(false).register(mux)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ui/docs/", http.StatusFound) })
	registerAssets(mux)
	return secured(mux)
}

func (b *book) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /ui/docs", func(w http.ResponseWriter, _ *http.Request) { b.serve(w, manual.Index) })
	mux.HandleFunc("GET /ui/docs/{$}", func(w http.ResponseWriter, _ *http.Request) { b.serve(w, manual.Index) })
	mux.HandleFunc("GET /ui/docs/{page}", func(w http.ResponseWriter, r *http.Request) { b.serve(w, r.PathValue("page")) })
	mux.HandleFunc("GET /ui/docs/search", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query().Get("q")
		v := b.view("Search", "")
		v.Query, v.Searched, v.Hits = q, true, b.manual().Search(q)
		answer(w, http.StatusOK, v.page())
	})
}

// manualPage is a page of the manual, or what a search has found.
type manualPage struct {
	Title, Here, Query string
	Body               markup
	Sections           []manual.Section // of the page
	Searched           bool
	Hits               []manual.Hit
	Chapters           []manual.Chapter
	book               *book
}

func (b *book) view(title, here string) *manualPage {
	return &manualPage{Title: title, Here: here, Chapters: b.manual().Chapters, book: b}
}

// show is the view of a page.
func (b *book) show(p *manual.Page) (*manualPage, error) {
	v := b.view(p.Title, p.Name)
	body, err := p.HTML(b.docs)
	v.Body = markup(body) // of our own pages, without raw HTML
	if all := p.Sections()[1:]; len(all) > 2 && p.Name != manual.Index {
		v.Sections = all
	}
	return v, err
}

func (b *book) serve(w http.ResponseWriter, name string) {
	p := b.manual().Find(name)
	if p == nil {
		v := b.view("No such page", "")
		v.Searched, v.Query = true, name
		v.Hits = b.manual().Search(name)
		answer(w, http.StatusNotFound, v.page())
		return
	}
	v, err := b.show(p)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer(w, http.StatusOK, v.page())
}

// WriteManual writes the manual into a folder, as pages that need no server: index.html,
// a page of each name, and search.html, whose script looks through all sections.
func WriteManual(dir string) error {
	b := newBook(false)
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
		if err != nil {
			return fmt.Errorf("page %s: %w", p.Name, err)
		}
		files[b.docs(p.Name, "")] = []byte(v.page().String())
	}
	v := b.view("Search", "")
	v.Searched = true
	files["search.html"] = []byte(v.page().String())
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
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil { //nolint:gosec // public: generated documentation
			return err
		}
	}
	return nil
}

// page is the whole page.
func (v *manualPage) page() *builder {
	b, of := &builder{}, v.book
	var more markup
	if of.root == "" { // files
		more = `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'self' file:; script-src 'self' file:; form-action 'self' file:; base-uri 'none'">`
		more += when(v.Searched, `<script src="sections.js" defer></script><script src="search.js" defer></script>`)
	}
	b.begin(v.Title+" · Tandem manual", of.root, more)
	current := "true"
	if v.Here == manual.Index {
		current = "page"
	}
	b.put(`<body>
<a class="skip" href="#content">Skip to content</a>
<header>
  <div class="brand"><span class="name">Tandem</span></div>
  <nav aria-label="Pages">
`)
	if of.many {
		b.put(`<a href="/ui">Nodes</a>`)
	} else if of.live {
		b.put(`<a href="/ui">Services</a> <a href="/ui/traffic">Traffic</a> <a href="/ui/history">Changes</a> <a href="/ui/explain">Explain</a>`)
	}
	b.put(` <a href="%s" aria-current="%s">Manual</a>
  </nav>
  <form class="search aside" role="search" action="%s" method="get">
    <span class="field"><label for="q">Search</label> <input id="q" name="q" type="search" value="%s" autocomplete="off" accesskey="s"></span>
    <button type="submit">Find</button>
  </form>
</header>
<div class="manual">
<main id="content" tabindex="-1">
`, of.docs(manual.Index, ""), current, of.search, v.Query)
	if v.Searched {
		v.found(b)
	} else {
		if len(v.Sections) > 0 {
			b.put(`<nav class="sections" aria-label="On this page"><ul>`)
			for _, s := range v.Sections {
				b.put(`<li><a href="#%s">%s</a></li>`, s.Anchor, s.Heading)
			}
			b.put(`</ul></nav>`)
		}
		b.put(`<article>%s</article>`, v.Body)
	}
	b.put(`</main>
<nav class="contents" aria-label="Contents">
`)
	for _, c := range v.Chapters {
		b.put(`<p class="chapter">%s</p><ul>`, c.Title)
		for _, p := range c.Pages {
			b.put(`<li><a href="%s"%s>%s</a></li>`, of.docs(p.Name, ""), when(p.Name == v.Here, ` aria-current="page"`), p.Title)
		}
		b.put(`</ul>`)
	}
	b.put(`</nav>
</div>
<footer><p>The manual of Tandem, also: <code>tandem docs</code></p></footer>
</body>
</html>
`)
	return b
}

// found is what a search has found.
func (v *manualPage) found(b *builder) {
	b.put(`<h1>%s</h1><p id="found" role="status">`, v.Title)
	if v.Query != "" {
		b.put(`%d sections have all words of “%s”.`, len(v.Hits), v.Query)
	} else {
		b.put(`Type words; sections that have all of them are found.`)
	}
	b.put(`</p><ul class="hits" id="hits">`)
	for _, h := range v.Hits {
		b.put(`<li><a href="%s">%s`, v.book.docs(h.Page.Name, h.Anchor), h.Page.Title)
		if h.Anchor != "" {
			b.put(`: %s`, h.Heading)
		}
		b.put(`</a> <p class="quiet">%s</p></li>`, h.Excerpt)
	}
	b.put(`</ul>`)
}
