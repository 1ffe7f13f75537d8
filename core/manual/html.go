// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"bytes"
	"fmt"
	"html"
	"path"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	table "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// HTML returns the body of a page. Link gives the address of a page, or of one of its
// headings. Raw HTML of a page is left out, but for <br>.
func (p *Page) HTML(link func(page, anchor string) string) ([]byte, error) {
	w := &writer{link: link, heading: p.Title}
	md := goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(w, 100))))
	var b bytes.Buffer
	err := md.Convert(p.Source, &b, parser.WithContext(parser.NewContext(parser.WithIDs(anchors{}))))
	return b.Bytes(), err
}

func (a anchors) Generate(value []byte, _ ast.NodeKind) []byte { return []byte(a.of(string(value))) }

func (a anchors) Put([]byte) {}

// parse returns the tree of a page, for what is not HTML.
func (p *Page) parse() ast.Node {
	return goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(p.Source))
}

// target returns where a link leads: a page and a heading of it, or an address.
func target(destination string) (page, anchor, address string) {
	if strings.Contains(destination, "://") {
		return "", "", destination
	}
	file, anchor, _ := strings.Cut(destination, "#")
	if name, ok := strings.CutSuffix(file, ".md"); ok && !strings.Contains(name, "/") {
		return name, anchor, ""
	}
	if file == "" {
		return "", anchor, ""
	}
	address = Repository + path.Join("core/manual/pages", file)
	if anchor != "" {
		address += "#" + anchor
	}
	return "", "", address
}

// writer renders what is different in the manual: links, tables and code.
type writer struct {
	link    func(page, anchor string) string
	heading string // the last one, which names what is below it
}

func (w *writer) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindHeading, w.title)
	r.Register(ast.KindLink, w.anchor)
	r.Register(ast.KindRawHTML, w.raw)
	r.Register(ast.KindCodeBlock, w.code)
	r.Register(ast.KindFencedCodeBlock, w.code)
	r.Register(table.KindTable, w.table)
	r.Register(table.KindTableCell, w.cell)
}

func (w *writer) title(out util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	h := n.(*ast.Heading)
	if entering {
		w.heading = plain(n, source)
		id, _ := n.AttributeString("id")
		fmt.Fprintf(out, "<h%d id=\"%s\">", h.Level, id)
	} else {
		fmt.Fprintf(out, "</h%d>\n", h.Level)
	}
	return ast.WalkContinue, nil
}

func (w *writer) anchor(out util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		_, _ = out.WriteString("</a>")
		return ast.WalkContinue, nil
	}
	page, anchor, address := target(string(n.(*ast.Link).Destination))
	switch {
	case page != "":
		address = w.link(page, anchor)
	case address == "":
		address = "#" + anchor
	}
	fmt.Fprintf(out, "<a href=\"%s\">", html.EscapeString(address))
	return ast.WalkContinue, nil
}

func (w *writer) raw(out util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering && string(n.(*ast.RawHTML).Segments.Value(source)) == "<br>" {
		_, _ = out.WriteString("<br>")
	}
	return ast.WalkSkipChildren, nil
}

// code renders a block that the keyboard can scroll. A picture, which is a block with the
// word picture and its description, is one to those who do not see it.
func (w *writer) code(out util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	role, name := "group", "Text: "+w.heading
	if f, ok := n.(*ast.FencedCodeBlock); ok && f.Info != nil {
		if about, is := strings.CutPrefix(string(f.Info.Segment.Value(source)), "picture "); is {
			role, name = "img", about
		}
	}
	fmt.Fprintf(out, "<pre tabindex=\"0\" role=\"%s\" aria-label=\"%s\"><code>%s</code></pre>\n", role, html.EscapeString(name), html.EscapeString(lines(n, source)))
	return ast.WalkSkipChildren, nil
}

// lines is the text of a block of code.
func lines(n ast.Node, source []byte) string {
	var b strings.Builder
	for i := range n.Lines().Len() {
		line := n.Lines().At(i)
		b.Write(line.Value(source))
	}
	return b.String()
}

func (w *writer) table(out util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		name := html.EscapeString(w.heading)
		fmt.Fprintf(out, "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"Table: %s\"><table>\n<caption class=\"hidden\">%s</caption>\n", name, name)
	} else {
		_, _ = out.WriteString("</table></div>\n")
	}
	return ast.WalkContinue, nil
}

func (w *writer) cell(out util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	tag, scope := "td", ""
	switch {
	case n.Parent().Kind() == table.KindTableHeader && n.HasChildren():
		tag, scope = "th", ` scope="col"`
	case n.Parent().Kind() == table.KindTableRow && n.PreviousSibling() == nil && n.HasChildren():
		tag, scope = "th", ` scope="row"`
	}
	if entering {
		fmt.Fprintf(out, "<%s%s>", tag, scope)
	} else {
		fmt.Fprintf(out, "</%s>\n", tag)
	}
	return ast.WalkContinue, nil
}

// plain is the text of a node without marks.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Text:
			if entering {
				b.Write(n.Segment.Value(source))
				if n.SoftLineBreak() || n.HardLineBreak() {
					b.WriteByte(' ')
				}
			}
		case *ast.String:
			if entering {
				b.Write(n.Value)
			}
		case *ast.AutoLink:
			if entering {
				b.Write(n.Label(source))
			}
		case *ast.RawHTML:
			if entering && string(n.Segments.Value(source)) == "<br>" {
				b.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}
