// SPDX-License-Identifier: Apache-2.0

package manual_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-proxy/tandem/core/manual"
)

var (
	fence = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code  = regexp.MustCompile("`[^`\n]*`")
	link  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// prose is a page without code.
func prose(source []byte) string {
	return code.ReplaceAllString(fence.ReplaceAllString(string(source), ""), "x")
}

// broken returns the links of a text that lead nowhere: to pages and headings of the
// manual, or to files of the tree.
func broken(m *manual.Manual, p *manual.Page, text string) (bad []string) {
	for _, found := range link.FindAllStringSubmatch(text, -1) {
		file, anchor, _ := strings.Cut(found[1], "#")
		to := p
		switch name, is := strings.CutSuffix(file, ".md"); {
		case strings.Contains(file, "://"):
			continue
		case strings.Contains(file, "/"):
			at := path.Join("../../core/manual/pages", file)
			if _, err := os.Stat(at); err != nil {
				bad = append(bad, found[1])
			}
			continue
		case is:
			to = m.Find(name)
		case file != "":
			to = nil
		}
		has := func(s manual.Section) bool { return s.Anchor == anchor }
		if to == nil || anchor != "" && !slices.ContainsFunc(to.Sections(), has) {
			bad = append(bad, found[1])
		}
	}
	return bad
}

func TestLinksResolve(t *testing.T) {
	m := manual.New()
	for _, p := range append(m.Pages(), m.Find(manual.Index)) {
		for _, l := range broken(m, p, prose(p.Source)) {
			t.Errorf("%s.md: %s leads nowhere", p.Name, l)
		}
	}
	p := m.Find("kubeadm")
	if got := broken(m, p, "[a](gone.md) [b](kubeadm.md#gone) [c](#gone) [d](#back) [e](kubeadm.md#back) [f](../../../gone.md) [g](../../../README.md)"); len(got) != 4 {
		t.Errorf("broken are %q", got)
	}
}

// Each file is a page of the contents, once, and begins with its title.
func TestContents(t *testing.T) {
	m := manual.New()
	seen := map[string]bool{}
	for _, p := range m.Pages() {
		if seen[p.Name] || p.About == "" {
			t.Errorf("%s is twice in the contents, or without a text", p.Name)
		}
		seen[p.Name] = true
		text := fence.ReplaceAllString(string(p.Source), "")
		if !strings.HasPrefix(text, "# ") || len(regexp.MustCompile(`(?m)^# `).FindAllString(text, -1)) != 1 {
			t.Errorf("%s.md does not have one title at its beginning", p.Name)
		}
	}
	all, err := filepath.Glob("pages/*.md")
	if err != nil || len(all) != len(seen)+1 {
		t.Errorf("%d files, %d pages in the contents: %v", len(all), len(seen), err)
	}
}

func TestSearch(t *testing.T) {
	m := manual.New()
	hits := m.Search("Source RANGES windows")
	if len(hits) == 0 || !strings.Contains(strings.ToLower(hits[0].Excerpt+hits[0].Heading), "source") {
		t.Errorf("found %+v", hits)
	}
	if hits := m.Search("k3s"); len(hits) == 0 || hits[0].Page.Name != "k3s" {
		t.Errorf("k3s is not the first: %+v", hits)
	}
	for _, q := range []string{"", " ", "no-such-word-anywhere", "k3s no-such-word-anywhere"} {
		if hits := m.Search(q); len(hits) != 0 {
			t.Errorf("%q finds %d", q, len(hits))
		}
	}
	if hits := m.Search("a"); len(hits) > manual.MostHits {
		t.Errorf("%d hits", len(hits))
	}
	if m.Find("no") != nil || m.Find("../README") != nil {
		t.Error("pages that are not there are found")
	}
}

// Text fits, but for code and what has no space; nothing of Markdown is left in it.
func TestText(t *testing.T) {
	for _, p := range manual.New().Pages() {
		text := p.Text(100)
		if !strings.HasPrefix(text, p.Title+"\n=") {
			t.Errorf("%s begins with %.60q", p.Name, text)
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 100 && !strings.Contains(line, "    ") && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%s: %d columns: %s", p.Name, n, line)
			}
			if strings.Contains(line, "](") || strings.HasPrefix(line, "## ") {
				t.Errorf("%s: %s", p.Name, line)
			}
		}
	}
}

// Manual pages have a name and sections, and links lead to others of them.
func TestManPages(t *testing.T) {
	for _, p := range manual.New().Pages() {
		text := string(p.ManPage("1.2.3"))
		if !strings.Contains(text, "tandem-"+p.Name) || !strings.Contains(text, ".SH NAME") || !strings.Contains(text, ".SH DESCRIPTION") || strings.Contains(text, ".md)") && !strings.Contains(text, "://") {
			t.Errorf("%s: %.300s", p.Name, text)
		}
	}
}

// What raw HTML a page has is not passed on.
func TestRawHTMLIsLeftOut(t *testing.T) {
	p := manual.Page{Name: "x", Title: "x", Source: []byte("# x\n\na<br>b <script>alert(1)</script> [l](y.md#z) [m](../../../ci/x.md)\n\n<iframe src=x></iframe>\n\n```sh\n<b>\n```\n")}
	out, err := p.HTML(func(page, anchor string) string { return "/" + page + "?" + anchor })
	got := string(out)
	if err != nil || strings.Contains(got, "<script") || strings.Contains(got, "<iframe") || !strings.Contains(got, "a<br>b") || !strings.Contains(got, "&lt;b&gt;") {
		t.Errorf("%v\n%s", err, got)
	}
	for _, want := range []string{`href="/y?z"`, `href="` + manual.Repository + `ci/x.md"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
}
