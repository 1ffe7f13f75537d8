// SPDX-License-Identifier: Apache-2.0

// Package manual is the manual of Tandem: pages of Markdown, which are the same wherever
// they are read.
//
//	pages/*.md ──┬─▶ HTML      /ui/docs of a running tandem, tandem docs, tandem docs --html (core/ui)
//	README.md    ├─▶ Text      tandem docs PAGE
//	has their    ├─▶ ManPage   tandem-PAGE(7); tandem-VERB(8) is made by it of what help shows
//	order        └─▶ Search
//
// The pages that are references are written by the tests of cmd/tandem from the flags, the
// commands and the metrics that there are.
package manual

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

//go:embed pages/*.md
var files embed.FS

// Repository is where links to files that are not pages lead.
const Repository = "https://github.com/tandem-proxy/tandem/blob/main/"

// Index is the name of the page that has the contents.
const Index = "README"

// Page is a page of the manual.
type Page struct {
	Name   string // of its file, without .md
	Title  string // its first heading
	About  string // what it is about, as the contents have it
	Source []byte
}

// Chapter is a part of the contents.
type Chapter struct {
	Title string
	Pages []*Page
}

// Manual is all pages. It is not changed.
type Manual struct {
	Chapters []Chapter
	index    *Page
}

// entry is a page in the contents: - [Title](name.md): what it is about
var entry = regexp.MustCompile(`^- \[([^\]]+)\]\(([a-z0-9-]+)\.md\): (.+)$`)

// New reads the manual. It panics where the contents name a page that is not there, which
// is a mistake in the program.
func New() *Manual {
	m := &Manual{index: read(Index)}
	for line := range strings.Lines(string(m.index.Source)) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			m.Chapters = append(m.Chapters, Chapter{Title: title})
			continue
		}
		if found := entry.FindStringSubmatch(line); found != nil && len(m.Chapters) > 0 {
			p := read(found[2])
			p.About = found[3]
			last := &m.Chapters[len(m.Chapters)-1]
			last.Pages = append(last.Pages, p)
		}
	}
	return m
}

func read(name string) *Page {
	source, err := files.ReadFile("pages/" + name + ".md")
	if err != nil {
		panic("manual: " + err.Error())
	}
	first, _, _ := bytes.Cut(source, []byte("\n"))
	return &Page{Name: name, Title: strings.TrimPrefix(string(first), "# "), Source: source}
}

// Pages returns all pages in the order of the contents, without the contents themselves.
func (m *Manual) Pages() (all []*Page) {
	for _, c := range m.Chapters {
		all = append(all, c.Pages...)
	}
	return all
}

// Find returns the page of this name; nil for none.
func (m *Manual) Find(name string) *Page {
	if name == Index {
		return m.index
	}
	for _, p := range m.Pages() {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Section is a part of a page under a heading.
type Section struct {
	Page    *Page
	Heading string
	Anchor  string // empty for what is above the first heading of level 2
	Text    string // without most of the marks of Markdown
}

// marks are removed from the text of sections: they are not what people look for.
var marks = regexp.MustCompile("[`*|]+|\\]\\([^)]*\\)|\\[|^#+ |^-{3,}$|(?:^| )-{3,}")

// Sections returns the parts of a page.
func (p *Page) Sections() []Section {
	now := Section{Page: p, Heading: p.Title}
	all, ids := []Section{}, anchors{}
	var text strings.Builder
	end := func() {
		now.Text = strings.Join(strings.Fields(text.String()), " ")
		all = append(all, now)
		text.Reset()
	}
	fenced := false
	for line := range strings.Lines(string(p.Source)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		level := len(line) - len(strings.TrimLeft(line, "#"))
		if !fenced && level > 0 && strings.HasPrefix(line[level:], " ") {
			title := marks.ReplaceAllString(line[level+1:], "")
			id := ids.of(line[level+1:])
			if level > 1 {
				end()
				now = Section{Page: p, Heading: title, Anchor: id}
			}
			continue
		}
		if !fenced {
			line = marks.ReplaceAllString(line, " ")
		}
		text.WriteString(line)
		text.WriteByte(' ')
	}
	end()
	return all
}

// anchors gives headings the ids that GitHub gives them, once in a page.
type anchors map[string]int

func (a anchors) of(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(heading)) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	id := b.String()
	n := a[id]
	a[id]++
	if n > 0 {
		id = fmt.Sprintf("%s-%d", id, n)
	}
	return id
}

// Hit is a section that has all words of a search.
type Hit struct {
	Section
	Excerpt string // around the first of them
}

// Bounds of a search.
const (
	maxWords = 8
	MostHits = 40
)

// Search returns the sections that have all words, those with a word in a heading or in
// the title of their page first.
func (m *Manual) Search(query string) (hits []Hit) {
	words := strings.Fields(strings.ToLower(query))
	words = words[:min(len(words), maxWords)]
	if len(words) == 0 {
		return nil
	}
	type ranked struct {
		Hit
		rank int
	}
	var found []ranked
	for _, p := range m.Pages() {
		for _, s := range p.Sections() {
			head, text := strings.ToLower(p.Title+" "+s.Heading), strings.ToLower(s.Text)
			rank := 0
			for _, w := range words {
				switch {
				case strings.Contains(head, w):
				case strings.Contains(text, w):
					rank++
				default:
					rank += maxWords + 1
				}
			}
			if rank <= maxWords {
				found = append(found, ranked{Hit{s, excerpt(s.Text, text, words)}, rank})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	for _, f := range found[:min(len(found), MostHits)] {
		hits = append(hits, f.Hit)
	}
	return hits
}

// excerpt is the part of a text around the first word that is in it.
func excerpt(text, lower string, words []string) string {
	const before, long = 60, 200
	at := 0
	for _, w := range words {
		if i := strings.Index(lower, w); i >= 0 && len(lower) == len(text) {
			at = i
			break
		}
	}
	from := max(0, at-before)
	for from > 0 && text[from-1] != ' ' {
		from--
	}
	to := min(len(text), from+long)
	for to < len(text) && text[to] != ' ' {
		to++
	}
	part := text[from:to]
	if from > 0 {
		part = "… " + part
	}
	if to < len(text) {
		part += " …"
	}
	return part
}
