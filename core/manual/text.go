// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/yuin/goldmark/ast"
	table "github.com/yuin/goldmark/extension/ast"
)

// Text returns a page as text of at most so many columns; 0 is 80. Code and what has no
// space is not broken.
func (p *Page) Text(width int) string {
	if width <= 0 {
		width = 80
	}
	t := &printer{source: p.Source, width: min(width, 120)}
	for n := p.parse().FirstChild(); n != nil; n = n.NextSibling() {
		t.block(n, "", "")
	}
	return strings.TrimLeft(t.out.String(), "\n")
}

// printer writes blocks as text.
type printer struct {
	source []byte
	width  int
	out    strings.Builder
}

// block writes a block: its first line begins with first, the others with rest.
func (t *printer) block(n ast.Node, first, rest string) {
	switch n := n.(type) {
	case *ast.Heading:
		line := strings.Repeat(map[bool]string{true: "=", false: "-"}[n.Level == 1], utf8.RuneCountInString(plain(n, t.source)))
		if n.Level > 2 {
			line = ""
		}
		fmt.Fprintf(&t.out, "\n%s%s\n%s", rest, plain(n, t.source), strings.TrimPrefix(rest+line+"\n", "\n"))
	case *ast.FencedCodeBlock, *ast.CodeBlock:
		t.out.WriteByte('\n')
		for line := range strings.Lines(lines(n, t.source)) {
			t.out.WriteString(strings.TrimRight(rest+"    "+line, " "))
		}
	case *ast.List:
		number := n.Start
		if n.Parent().Kind() == ast.KindDocument {
			t.out.WriteByte('\n')
		}
		for item := n.FirstChild(); item != nil; item = item.NextSibling() {
			mark := "- "
			if n.IsOrdered() {
				mark = fmt.Sprintf("%d. ", number)
				number++
			}
			begin, indent := rest+mark, rest+strings.Repeat(" ", len(mark))
			for c := item.FirstChild(); c != nil; c = c.NextSibling() {
				t.block(c, begin, indent)
				begin = indent
			}
		}
	case *table.Table:
		t.table(n, rest)
	case *ast.Blockquote:
		for c := n.FirstChild(); c != nil; c = c.NextSibling() {
			t.block(c, rest+"  ", rest+"  ")
		}
	case *ast.TextBlock: // of a tight list
		t.wrap(t.inline(n), first, rest)
	default:
		t.out.WriteByte('\n')
		t.wrap(t.inline(n), first, rest)
	}
}

func (t *printer) wrap(text, first, rest string) {
	for i, line := range fold(text, t.width-utf8.RuneCountInString(rest)) {
		if i == 0 {
			t.out.WriteString(first)
		} else {
			t.out.WriteString(rest)
		}
		t.out.WriteString(line + "\n")
	}
}

// inline is the text of a block, with where its links lead.
func (t *printer) inline(n ast.Node) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		b.WriteString(plain(c, t.source))
		if l, ok := c.(*ast.Link); ok {
			page, _, address := target(string(l.Destination))
			switch {
			case page != "":
				fmt.Fprintf(&b, " (tandem docs %s)", page)
			case address != "":
				fmt.Fprintf(&b, " (%s)", address)
			}
		}
	}
	return b.String()
}

// fold breaks a text into lines.
func fold(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// maxWord is how long words of a cell may be and stay whole, where there is room.
const maxWord = 36

// broken has no word longer than a width.
func broken(text string, width int) string {
	words := strings.Fields(text)
	for i, w := range words {
		for parts := []rune(w); len(parts) > width; parts = parts[width:] {
			words[i] = strings.TrimSuffix(words[i], string(parts)) + string(parts[:width]) + " " + string(parts[width:])
		}
	}
	return strings.Join(words, " ")
}

// table writes a table whose cells are folded where it is too wide.
func (t *printer) table(n ast.Node, indent string) {
	var rows [][]string
	for r := n.FirstChild(); r != nil; r = r.NextSibling() {
		var cells []string
		for c := r.FirstChild(); c != nil; c = c.NextSibling() {
			cells = append(cells, t.inline(c))
		}
		rows = append(rows, cells)
	}
	widths, least := make([]int, len(rows[0])), make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
			for _, word := range strings.Fields(c) {
				least[i] = max(least[i], min(utf8.RuneCountInString(word), maxWord))
			}
		}
	}
	room := t.width - utf8.RuneCountInString(indent) - 2*(len(widths)-1)
	for sum(widths) > room {
		widest := 0
		for i := range widths {
			if widths[i]-least[i] > widths[widest]-least[widest] {
				widest = i
			}
		}
		if widths[widest] == least[widest] { // long words are broken then
			if widest = slices.Index(widths, slices.Max(widths)); widths[widest] <= 8 {
				break
			}
			least[widest] = widths[widest] - 1
		}
		widths[widest]--
	}
	t.out.WriteByte('\n')
	for i, r := range rows {
		cells, high := make([][]string, len(r)), 0
		for j, c := range r {
			cells[j] = fold(broken(c, widths[j]), widths[j])
			high = max(high, len(cells[j]))
		}
		for line := range high {
			text := indent
			for j := range cells {
				cell := ""
				if line < len(cells[j]) {
					cell = cells[j][line]
				}
				text += cell + strings.Repeat(" ", max(0, widths[j]-utf8.RuneCountInString(cell))+2)
			}
			t.out.WriteString(strings.TrimRight(text, " ") + "\n")
		}
		if i == 0 {
			total := sum(widths) + 2*(len(widths)-1)
			t.out.WriteString(indent + strings.Repeat("-", min(total, t.width)) + "\n")
		}
	}
}

func sum(all []int) (n int) {
	for _, x := range all {
		n += x
	}
	return n
}

// pageLink is a link of a page to another one, or to a file.
var pageLink = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)

// ManPage returns a page in the language of man(1), as tandem-NAME(7).
func (p *Page) ManPage(version string) []byte {
	var b strings.Builder
	b.WriteString("# DESCRIPTION\n")
	fenced := false
	_, body, _ := strings.Cut(string(p.Source), "\n")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if !fenced {
			line = strings.Replace(line, "## ", "# ", 1)
			line = pageLink.ReplaceAllStringFunc(line, func(link string) string {
				parts := pageLink.FindStringSubmatch(link)
				if page, _, _ := target(parts[2]); page != "" {
					return parts[1] + " (tandem-" + page + "(7))"
				}
				if _, _, address := target(parts[2]); address != "" {
					return parts[1] + " (" + address + ")"
				}
				return parts[1]
			})
		}
		b.WriteString(line)
	}
	return ManPage("tandem-"+p.Name, 7, version, p.Title, b.String())
}

// ManPage is a text in the language of man(1), as NAME(SECTION). It has no date: two builds are the same.
func ManPage(name string, section int, version, about, text string) []byte {
	head := fmt.Sprintf("%% %q \"%d\" \"\" \"tandem %s\" \"Tandem\"\n# NAME\n%s - %s\n\n", strings.ToUpper(name), section, version, name, about)
	return md2man.Render([]byte(head + text))
}
