// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/tandem-proxy/tandem/core/manual"
	"github.com/tandem-proxy/tandem/core/ui"
)

// elsewhere returns what a page loads that is not its own, and links without a target
// below the page's own address.
func elsewhere(t *testing.T, page string, has func(string) bool) (bad []string) {
	t.Helper()
	tree, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for n := range tree.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		for _, a := range n.Attr {
			loads := a.Key == "src" || n.Data == "link" && a.Key == "href"
			leads := n.Data == "a" && a.Key == "href" && !strings.Contains(a.Val, "://") || n.Data == "form" && a.Key == "action"
			to, _, _ := strings.Cut(a.Val, "#")
			if loads && strings.Contains(a.Val, "//") || (loads || leads) && to != "" && !has(to) || a.Key == "style" || strings.HasPrefix(a.Key, "on") || n.Data == "style" {
				bad = append(bad, n.Data+" "+a.Key+"="+a.Val)
			}
		}
	}
	return bad
}

// Each page of the manual, served beside those of a proxy or alone, is whole: title,
// language, headings in order, names of regions; all that it loads or links is there.
func TestManualIsServed(t *testing.T) {
	for name, h := range map[string]http.Handler{"proxy": ui.Handler(source(world(1))), "alone": ui.Manual()} {
		there := map[string]bool{}
		has := func(path string) bool {
			if _, asked := there[path]; !asked {
				there[path] = get(h, path).Code == http.StatusOK
			}
			return there[path]
		}
		paths := []string{"/ui/docs", "/ui/docs/", "/ui/docs/search", "/ui/docs/search?q=nftables", "/ui/docs/search?q=%3Cscript%3E"}
		for _, p := range manual.New().Pages() {
			paths = append(paths, "/ui/docs/"+p.Name)
		}
		for _, path := range paths {
			w := get(h, path)
			body := w.Body.String()
			if w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%s %s: %d %v", name, path, w.Code, w.Header())
			}
			for _, f := range append(faults(body), elsewhere(t, body, has)...) {
				t.Errorf("%s %s: %s", name, path, f)
			}
			if strings.Contains(body, "<script>") {
				t.Errorf("%s %s has a script of its own", name, path)
			}
		}
		if w := get(h, "/ui/docs/nowhere"); w.Code != http.StatusNotFound || len(faults(w.Body.String())) > 0 {
			t.Errorf("%s: a page that is not there: %d %q", name, w.Code, faults(w.Body.String()))
		}
		if w := get(h, "/ui/docs/search?q=k3s"); !strings.Contains(w.Body.String(), `href="/ui/docs/k3s"`) {
			t.Errorf("%s: a search finds no page", name)
		}
	}
	if got := elsewhere(t, `<a href="gone">x</a><img src="https://example.com/x.png"><p style="color:red" onclick="x()">`, func(string) bool { return false }); len(got) != 4 {
		t.Errorf("not whole are %q", got)
	}
}

// The manual as files needs no server, and has the same pages.
func TestManualIsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	if err := ui.WriteManual(dir); err != nil {
		t.Fatal(err)
	}
	has := func(path string) bool {
		_, err := fs.Stat(os.DirFS(dir), path)
		return err == nil
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.html"))
	if err != nil || len(pages) != len(manual.New().Pages())+2 {
		t.Fatal(len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(faults(string(text)), elsewhere(t, string(text), has)...) {
			t.Errorf("%s: %s", filepath.Base(page), f)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "sections.js")); err != nil || !strings.Contains(string(text), `"to":"kubeadm.html#back"`) {
		t.Errorf("the search has no sections: %v", err)
	}
}
