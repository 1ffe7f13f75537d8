// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// plotted returns the rows that a plot shows, each in a panel of its own.
func plotted() []string {
	return []string{
		"slice written to first connection, p50",
		"process start to everything programmed",
		"CPU of a change, children included",
		"resident memory after the changes",
	}
}

// The measures of a plot, in pixels. Two panels are side by side.
const (
	panelWidth = 420
	labelWidth = 150
	barWidth   = 190 // of the largest value: the scale is linear and begins at 0
	barHeight  = 16
	titleSpace = 30
)

// style follows the reader's colours, light or dark, and needs no font of its own.
const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.ours { fill: #1a7f64 } .peer { fill: #8c959f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ours { fill: #3fb994 } .peer { fill: #6e7681 } }
</style>
`

// plot draws figures as SVG: bars of all columns, in a panel for each row.
func plot(f *figures) (string, error) {
	var panels []row
	for _, what := range plotted() {
		if i := slices.IndexFunc(f.Rows, func(r row) bool { return r.What == what }); i >= 0 {
			panels = append(panels, f.Rows[i])
		}
	}
	if len(panels) == 0 {
		return "", fmt.Errorf("the %s benchmark measures nothing that is plotted", f.Bench)
	}
	panelHeight := titleSpace + len(f.Columns)*barHeight + 14
	width, height := 2*panelWidth, (len(panels)+1)/2*panelHeight+24
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">`+"\n", width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n%s", html.EscapeString(f.World+"; "+f.Machine), style)
	for i, r := range panels {
		f.panel(&b, r, i%2*panelWidth, i/2*panelHeight)
	}
	fmt.Fprintf(&b, `<text x="0" y="%d">%s</text>`+"\n</svg>\n", height-8, html.EscapeString(f.World+"; "+f.Machine+". Less is better."))
	return b.String(), nil
}

func (f *figures) panel(b *strings.Builder, r row, x, y int) {
	largest := 0.0
	for _, v := range r.Values {
		largest = max(largest, v)
	}
	fmt.Fprintf(b, `<text class="title" x="%d" y="%d">%s</text>`+"\n", x, y+18, html.EscapeString(r.What))
	for i, c := range f.Columns {
		v, ok := r.Values[c]
		if !ok || largest <= 0 {
			continue
		}
		class, top, wide := "ours", y+titleSpace+i*barHeight, max(v/largest*barWidth, 1)
		if slices.Contains(f.Peers, c) {
			class = "peer"
		}
		fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`, x, top+11, html.EscapeString(c))
		fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`, class, x+labelWidth, top, wide, barHeight-3)
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(x+labelWidth+5)+wide, top+11, r.Unit.show(v))
	}
}
