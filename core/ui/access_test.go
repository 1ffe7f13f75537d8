// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/tandem-proxy/tandem/core/ui"
)

// faults are what breaks axe's main rules in a page: language, title, landmarks,
// headings, labels, names of links and pictures, tables, ids.
func faults(page string) (found []string) {
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		return []string{err.Error()}
	}
	bad := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	ids, labelled := map[string]int{}, map[string]bool{}
	count := map[string]int{}
	level := 0
	var all []*html.Node
	for n := range root.Descendants() {
		if n.Type == html.ElementNode {
			all = append(all, n)
			count[n.Data]++
			if id := attr(n, "id"); id != "" {
				ids[id]++
			}
			if n.Data == "label" && attr(n, "for") != "" {
				labelled[attr(n, "for")] = true
			}
		}
	}
	for _, one := range []string{"main", "h1", "header", "footer", "title"} {
		if n := count[one]; n != 1 && !(one == "title" && n > 1) { // SVG has titles, too
			bad("%d of <%s>", n, one)
		}
	}
	for id, n := range ids {
		if n > 1 {
			bad("id %s is there %d times", id, n)
		}
	}
	for _, n := range all {
		name := strings.TrimSpace(text(n))
		for _, ref := range strings.Fields(attr(n, "aria-labelledby")) {
			if ids[ref] == 0 {
				bad("<%s> is labelled by %s, which is not there", n.Data, ref)
			}
		}
		switch n.Data {
		case "html":
			if attr(n, "lang") == "" {
				bad("no language")
			}
		case "h1", "h2", "h3", "h4":
			now := int(n.Data[1] - '0')
			if now > level+1 {
				bad("heading %q of level %d follows level %d", name, now, level)
			}
			level = now
			if name == "" {
				bad("a heading without text")
			}
		case "a", "button":
			if name == "" && attr(n, "aria-label") == "" {
				bad("a <%s> without a name", n.Data)
			}
		case "input", "select":
			if attr(n, "type") != "hidden" && !labelled[attr(n, "id")] && !within(n, "label") {
				bad("<%s name=%s> without a label", n.Data, attr(n, "name"))
			}
		case "img":
			if attr(n, "alt") == "" {
				bad("an image without alt")
			}
		case "svg":
			if attr(n, "role") != "img" || attr(n, "aria-label")+attr(n, "aria-labelledby") == "" {
				bad("a picture without a name")
			}
		case "nav", "section", "meter":
			if attr(n, "aria-label")+attr(n, "aria-labelledby") == "" {
				bad("<%s> without a name", n.Data)
			}
		case "table":
			if !strings.Contains(inner(n), "caption") {
				bad("a table without a caption")
			}
		case "th":
			if attr(n, "scope") == "" {
				bad("a heading of a table without scope")
			}
		}
		if attr(n, "tabindex") == "0" && attr(n, "aria-label") == "" {
			bad("<%s> takes the focus and has no name", n.Data)
		}
	}
	return found
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}

func inner(n *html.Node) string {
	var names []string
	for d := range n.Descendants() {
		names = append(names, d.Data)
	}
	return strings.Join(names, " ")
}

func within(n *html.Node, data string) bool {
	for p := range n.Ancestors() {
		if p.Data == data {
			return true
		}
	}
	return false
}

func TestPagesAreAccessible(t *testing.T) {
	in := world(120)
	h := ui.Handler(source(in))
	for _, c := range every(in) {
		if strings.HasSuffix(c.path, ".css") || strings.HasSuffix(c.path, ".js") {
			continue
		}
		for _, f := range faults(get(h, c.path).Body.String()) {
			t.Errorf("%s: %s", c.path, f)
		}
	}
	h = newFleet(9, 20).handler()
	for _, path := range []string{"/ui", "/ui?q=nowhere", "/ui/path", "/node/node-1/ui", "/node/node-3/ui", "/node/node-1/ui/service/shop/checkout-0", "/node/node-1/ui/explain"} {
		for _, f := range faults(get(h, path).Body.String()) {
			t.Errorf("%s: %s", path, f)
		}
	}
}

// The rules find what they are for.
func TestRulesBite(t *testing.T) {
	const page = `<html><head></head><body><h1>a</h1><h3></h3><main><a href=x></a><input name=q><select></select><img src=x><svg></svg><nav></nav>
		<table><tr><th>x</th></tr></table><p id=a></p><p id=a></p><div tabindex=0></div><section aria-labelledby=gone></section></main></body></html>`
	if got := faults(page); len(got) < 15 {
		t.Errorf("only %d found: %q", len(got), got)
	}
}

// Text has enough contrast: 4.5 to 1 (WCAG 2.2, 1.4.3), controls and
// lines 3 to 1 (1.4.11), light and dark.
func TestContrast(t *testing.T) {
	css, err := os.ReadFile("assets/style.css")
	if err != nil {
		t.Fatal(err)
	}
	light, dark, ok := strings.Cut(string(css), "@media (prefers-color-scheme: dark)")
	if !ok {
		t.Fatal("no dark colours")
	}
	dark, _, _ = strings.Cut(dark, "\n}")
	for name, part := range map[string]string{"light": light, "dark": dark} {
		colors := map[string]string{}
		for _, m := range regexp.MustCompile(`--([a-z-]+): (#[0-9a-f]{6})`).FindAllStringSubmatch(part, -1) {
			colors[m[1]] = m[2]
		}
		check := func(a, b string, least float64) {
			t.Helper()
			if colors[a] == "" || colors[b] == "" {
				t.Fatalf("%s: no colour %s or %s", name, a, b)
			}
			if got := contrast(colors[a], colors[b]); got < least {
				t.Errorf("%s: %s on %s: %.2f, least %.1f", name, a, b, got, least)
			}
		}
		for _, fore := range []string{"text", "quiet", "accent"} {
			for _, ground := range []string{"ground", "card", "tint"} {
				check(fore, ground, 4.5)
			}
		}
		for _, kind := range []string{"good", "warn", "bad"} {
			for _, ground := range []string{"ground", "card", kind + "-tint"} {
				check(kind, ground, 4.5)
			}
		}
		check("text", "bad-tint", 4.5)
		check("quiet", "bad-tint", 4.5)
		check("accent", "bad-tint", 4.5)
		check("accent", "tint", 3)
	}
	if got := contrast("#000000", "#ffffff"); math.Abs(got-21) > 0.01 {
		t.Errorf("black on white: %f", got)
	}
}

// contrast is that of two colours, by WCAG's formula.
func contrast(a, b string) float64 {
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func luminance(color string) (l float64) {
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, _ := strconv.ParseUint(color[1+2*i:3+2*i], 16, 8)
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		l += weight * c
	}
	return l
}
