// SPDX-License-Identifier: Apache-2.0

package main

import (
	"unicode/utf8"

	"github.com/tandem-proxy/tandem/core/printable"
)

// column is a column of a table.
type column struct {
	name  string
	wide  bool // shown with -o wide only
	keep  bool // never cut: addresses and states, which people copy or look for
	state bool // its words have colours, see stateColor
}

// table is rows with a cell for each column. An empty cell of a later row means the
// same as above.
type table struct {
	columns []column
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// The narrowest width of a column, and what separates columns.
const (
	narrowest = 8
	gutter    = "  "
)

// table writes a table that fits the screen: without the wide columns, and with the
// broadest columns that may be cut made narrower. Wide ones are written in full.
func (s *screen) table(t table) {
	t = t.shown(s.wide)
	widths := t.widths()
	if s.width > 0 && !s.wide {
		t.fit(widths, s.width)
	}
	head := make([]string, len(t.columns))
	for i, c := range t.columns {
		head[i] = c.name
	}
	s.row(head, widths, func(int, string) string { return bold })
	for _, r := range t.rows {
		s.row(r, widths, func(i int, cell string) string {
			if t.columns[i].state {
				return stateColor(cell)
			}
			return ""
		})
	}
}

// shown is the table without the columns that are for wide screens, and with cells
// that are safe to print.
func (t table) shown(wide bool) (out table) {
	for _, c := range t.columns {
		if wide || !c.wide {
			out.columns = append(out.columns, c)
		}
	}
	out.rows = make([][]string, 0, len(t.rows))
	for _, r := range t.rows {
		cells := make([]string, 0, len(out.columns))
		for i, cell := range r {
			if wide || !t.columns[i].wide {
				cells = append(cells, printable.Text(cell))
			}
		}
		out.rows = append(out.rows, cells)
	}
	return out
}

func (t table) widths() []int {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = utf8.RuneCountInString(c.name)
		for _, r := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	return widths
}

// fit cuts the broadest column by one until all fit or none can be cut.
func (t table) fit(widths []int, limit int) {
	total := (len(widths) - 1) * len(gutter)
	for _, w := range widths {
		total += w
	}
	for ; total > limit; total-- {
		widest := -1
		for i, w := range widths {
			if !t.columns[i].keep && w > narrowest && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

const blanks = "                                                                "

// row writes cells side by side, with nothing behind the last one that is not empty.
func (s *screen) row(cells []string, widths []int, color func(i int, cell string) string) {
	last := len(cells) - 1
	for last > 0 && cells[last] == "" {
		last--
	}
	for i, cell := range cells[:last+1] {
		if i > 0 {
			s.text.WriteString(gutter)
		}
		pad := max(widths[i]-utf8.RuneCountInString(cell), 0)
		s.text.WriteString(s.paint(color(i, cell), cut(cell, widths[i])))
		for i < last && pad > 0 {
			n := min(pad, len(blanks))
			s.text.WriteString(blanks[:n])
			pad -= n
		}
	}
	s.text.WriteString("\n")
}

// cut shortens a text to a width in characters.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}
