// SPDX-License-Identifier: Apache-2.0

// Command pictures draws what README shows, into its own folder:
//
//	demo.txt, as ci/pictures/run recorded it ──▶ demo.svg
//	the way of a change, in this file        ──▶ architecture.svg
//
// page.png is a page of /ui as a browser draws it: TestInABrowser of core/ui. The drawings follow
// the reader's colours, light or dark, and need no font of their own.
package main

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

func main() {
	if err := write("ci/pictures"); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	all, err := drawn(dir)
	if err != nil {
		return err
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// drawn returns the drawings by their files' names.
func drawn(dir string) (map[string]string, error) {
	record, err := os.ReadFile(filepath.Join(dir, "demo.txt"))
	if err != nil {
		return nil, err
	}
	return map[string]string{"demo.svg": terminal(string(record)), "architecture.svg": architecture()}, nil
}

const style = `<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.small { font-size: 11px; fill: #59636e } .mono, .said { font-family: ui-monospace, monospace; font-size: 12px } .mono { fill: #e6edf3 } .said { fill: #7ee2b8 }
.screen { fill: #161b22 } .box { fill: #eef7f3; stroke: #1a7f64 } .edge { fill: #f6f8fa; stroke: #8c959f } .way { stroke: #59636e; fill: none } .tip { fill: #59636e }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } .box { fill: #12261f; stroke: #3fb994 } .edge { fill: #161b22; stroke: #6e7681 } .way { stroke: #9198a1 } .tip { fill: #9198a1 } }
</style>
`

func svg(width, height int, title, body string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">`+"\n<title>%s</title>\n%s%s</svg>\n",
		width, height, html.EscapeString(title), style, body)
}

// terminal draws a recorded session; what was typed begins with a dollar sign.
func terminal(record string) string {
	const column, line, margin = 7.25, 17, 14
	lines := strings.Split(strings.TrimRight(record, "\n"), "\n")
	widest := 0
	var b strings.Builder
	for i, text := range lines {
		widest = max(widest, utf8.RuneCountInString(text))
		class := "mono"
		if strings.HasPrefix(text, "$ ") {
			class = "said"
		}
		if text != "" {
			fmt.Fprintf(&b, `<text class="%s" x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", class, margin, margin+line*i+12, html.EscapeString(text))
		}
	}
	width, height := int(float64(widest)*column)+2*margin, line*len(lines)+2*margin
	return svg(width, height, "The output of tandem demo", fmt.Sprintf(`<rect class="screen" width="%d" height="%d" rx="8"/>`+"\n", width, height)+b.String())
}

// stop is a place on the way of a change.
type stop struct {
	name, about string
	ours        bool
}

// architecture draws the way of a change from its source to the kernel, and what is read back.
func architecture() string {
	way := []stop{
		{"API server", "or manifests", false},
		{"track", "which Services", true},
		{"resolve", "every policy, once", true},
		{"compile", "objects of a mode", true},
		{"ledger", "want minus have", true},
		{"driver", "one write", true},
		{"kernel, HNS", "serves packets", false},
	}
	const width, height, gap, margin, top = 118, 46, 22, 10, 12
	at := func(i int) int { return margin + i*(width+gap) }
	var b strings.Builder
	box := func(s stop, x, y, wide int) {
		class := map[bool]string{true: "box", false: "edge"}[s.ours]
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="6"/><text x="%d" y="%d" text-anchor="middle">%s</text><text class="small" x="%[6]d" y="%[9]d" text-anchor="middle">%s</text>`+"\n",
			class, x, y, wide, height, x+wide/2, y+20, html.EscapeString(s.name), y+36, html.EscapeString(s.about))
	}
	arrow := func(x, y, dx, dy int, path string) { // dx, dy is where it points
		fmt.Fprintf(&b, `<path class="way" d="%s"/><path class="tip" d="M%d %dl%d %dl%d %dz"/>`+"\n", path, x, y, -6*dx-4*dy, -6*dy-4*dx, 8*dy, 8*dx)
	}
	for i, s := range way {
		box(s, at(i), top, width)
		if i > 0 {
			arrow(at(i), top+height/2, 1, 0, fmt.Sprintf("M%d %dH%d", at(i-1)+width, top+height/2, at(i)-4))
		}
	}
	below := top + height + 40
	last, ledger, resolve := at(6)+width/2, at(4)+width/2, at(2)+width/2
	arrow(ledger, top+height, 0, -1, fmt.Sprintf("M%d %dV%dH%dV%d", last, top+height, below+height/2, ledger, top+height+4))
	fmt.Fprintf(&b, `<text class="small" x="%d" y="%d" text-anchor="middle">observe: at start, and in audits</text>`+"\n", (last+ledger)/2, below+height/2-6)
	arrow(resolve, below, 0, 1, fmt.Sprintf("M%d %dV%d", resolve, top+height, below-4))
	box(stop{"snapshot", "status, explain, trace, metrics, health, /ui", true}, at(1), below, at(3)+width-at(1))
	return svg(at(6)+width+margin, below+height+top, "A change on its way from the API server to the kernel", b.String())
}
