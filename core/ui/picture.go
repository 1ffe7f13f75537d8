// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/question"
)

// The picture of a Service has a fan for each port in each family: its frontends, and its endpoints at the other end of
// a line, if they are used, as broad as their share.
const (
	mostFans  = 8  // the tables have them all
	mostDrawn = 24 // frontends, and endpoints, of a fan
	rowHeight = 34
	caption   = 22 // above a fan
)

// layout is where a fan has its parts, from the left. Lines go from the inner edge of frontends to the hub, and on to that of
// endpoints.
type layout struct {
	class              string
	width, box         int // of the picture, and of a box
	fronts, ends       int // where boxes begin
	hub, leave, arrive float64
	stacked            bool // endpoints are below their frontends
}

// The page has both, and shows the one that its window is for.
func layouts() []layout {
	return []layout{
		{class: "beside", width: 700, box: 275, ends: 425, leave: 275, hub: 350, arrive: 425},
		{class: "stacked", width: 360, box: 316, fronts: 44, ends: 44, leave: 44, hub: 12, arrive: 44, stacked: true},
	}
}

// port is what a fan is of.
type port struct {
	name, proto, family string
	fronts              []question.FrontendDetail
	ends                []endpoint
}

// portsOf sorts frontends and endpoints by port and family, in their order.
func portsOf(fronts []question.FrontendDetail, ends []endpoint) (all []*port) {
	known := map[[3]string]*port{}
	of := func(name, proto, family string) *port {
		key := [3]string{name, proto, family}
		if known[key] == nil {
			known[key] = &port{name: name, proto: proto, family: family}
			all = append(all, known[key])
		}
		return known[key]
	}
	for _, f := range fronts {
		p := of(f.Port, f.Proto, cmp.Or(f.Family, familyOf(f.Address))) // older versions do not say it
		p.fronts = append(p.fronts, f)
	}
	for _, e := range ends {
		p := of(e.Port, e.Protocol, e.Family)
		p.ends = append(p.ends, e)
	}
	return all
}

func picture(name, state string, fronts []question.FrontendDetail, ends []endpoint) markup {
	used := 0
	for _, e := range ends {
		if e.Used {
			used++
		}
	}
	ports := portsOf(fronts, ends)
	title := fmt.Sprintf("%s: %d frontends, %d endpoints, %d of them used", name, len(fronts), len(ends), used)
	var b builder
	for _, l := range layouts() {
		fans, height := l.draw(ports, state)
		b.put(`<svg class="picture %s" viewBox="0 0 %d %d" role="img" aria-label="%s">%s</svg>`, l.class, l.width, max(height, caption), title, fans)
	}
	return b.markup()
}

// draw draws the first ports, one below the other.
func (l *layout) draw(ports []*port, state string) (fans markup, height int) {
	var b builder
	drawn := ports[:min(len(ports), mostFans)]
	for _, p := range drawn {
		height = l.fan(&b, p, height, state)
	}
	if more := len(ports) - len(drawn); more > 0 {
		height = l.note(&b, 0, height, fmt.Sprintf("and %d more ports", more))
	}
	return b.markup(), height
}

// fan draws a port from a height on, and returns where the next one begins.
func (l *layout) fan(b *builder, p *port, top int, state string) (next int) {
	fronts, ends := p.fronts[:min(len(p.fronts), mostDrawn)], p.ends[:min(len(p.ends), mostDrawn)]
	name := strings.TrimSpace(p.name + " (" + p.proto + ")")
	top = l.note(b, 0, top, name+", "+p.family)
	rows := max(len(fronts), len(ends), 1)
	centre := float64(top) + float64(rows*rowHeight)/2 // of what is beside each other
	at := func(i, n int) float64 { return centre + (float64(i)-float64(n-1)/2)*rowHeight }
	hub, from, to := centre, at, at
	next = top + rows*rowHeight
	unshown := func(x, more, y int) int {
		if more == 0 {
			return y
		}
		return l.note(b, x, y, fmt.Sprintf("and %d more", more))
	}
	if l.stacked {
		below := func(y int) func(int, int) float64 {
			return func(i, _ int) float64 { return float64(y) + (float64(i)+0.5)*rowHeight }
		}
		from = below(top)
		next = unshown(l.fronts, len(p.fronts)-len(fronts), top+len(fronts)*rowHeight)
		hub, to = float64(next+caption/2), below(next+caption)
		next = unshown(l.ends, len(p.ends)-len(ends), next+caption+len(ends)*rowHeight)
	} else {
		next = max(unshown(l.fronts, len(p.fronts)-len(fronts), next), unshown(l.ends, len(p.ends)-len(ends), next))
	}
	for i := range fronts {
		curve(b, "line", l.leave, from(i, len(fronts)), l.hub, hub, 1.5)
	}
	for i, e := range ends {
		if e.Used {
			curve(b, "line "+className(e.State), l.hub, hub, l.arrive, to(i, len(ends)), 1.5+4*e.Share)
		}
	}
	b.put(`<circle class="hub %s" cx="%.0f" cy="%.1f" r="7"/>`, className(state), l.hub, hub)
	for i, f := range fronts {
		l.drawBox(b, "frontend", l.fronts, from(i, len(fronts)), f.Address, f.Kind)
	}
	for i, e := range ends {
		l.drawBox(b, "endpoint "+className(e.State), l.ends, to(i, len(ends)), e.Address, e.State)
	}
	return next + 6
}

// note writes a line of text, and returns where it ends.
func (l *layout) note(b *builder, x, y int, text string) (next int) {
	b.put(`<text class="more" x="%d" y="%d">%s</text>`, x, y+16, text)
	return y + caption
}

func curve(b *builder, class string, x1, y1, x2, y2, width float64) {
	mid := (x1 + x2) / 2
	b.put(`<path class="%s" d="M%.0f %.1fC%.0f %.1f %.0f %.1f %.0f %.1f" stroke-width="%.1f"/>`, class, x1, y1, mid, y1, mid, y2, x2, y2, width)
}

func (l *layout) drawBox(b *builder, class string, x int, y float64, text, detail string) {
	b.put(`<g class="%s">`, class)
	if short := shorten(text, l.room(detail)); short != text {
		b.put(`<title>%s</title>`, text)
		text = short
	}
	b.put(`<rect x="%d" y="%.1f" width="%d" height="26" rx="6"/><text x="%d" y="%.1f">%s</text><text class="detail" x="%d" y="%.1f" text-anchor="end">%s</text></g>`,
		x, y-13, l.box, x+10, y+4.5, text, x+l.box-10, y+4.5, detail)
}

// room is how many characters of an address fit beside a detail, from the widths of both fonts.
func (l *layout) room(detail string) int {
	const address, other, around = 7.9, 6.3, 30
	return max(18, int((float64(l.box-around)-other*float64(utf8.RuneCountInString(detail)))/address))
}

// shorten cuts a text in its middle: addresses of one range differ at their end.
func shorten(text string, longest int) string {
	const end = 15 // the last group of an IPv6 address, a port and a protocol
	runes := []rune(text)
	if len(runes) <= longest {
		return text
	}
	return string(runes[:longest-1-end]) + "…" + string(runes[len(runes)-end:])
}

// histogram is how long one stage took, over all changes that are remembered.
type histogram struct {
	Stage       string
	Bars        []bar
	Median, P99 history.Seconds
	N           int
	Picture     markup
}

type bar struct {
	Label string
	N     int
}

// limits of the bars: 10 µs to 10 s, by tens.
func limits() []time.Duration {
	all := []time.Duration{}
	for d := 10 * time.Microsecond; d <= 10*time.Second; d *= 10 {
		all = append(all, d)
	}
	return all
}

// histograms has one for each stage, and one for all together.
func histograms(entries []history.Entry) []histogram {
	values := map[string][]float64{}
	for i := range entries {
		s := entries[i].Sync
		if s == nil || entries[i].Number == 0 {
			continue
		}
		for stage := range history.Stages {
			values[stage.String()] = append(values[stage.String()], float64(s.Stages.Of(stage)))
		}
		values["total"] = append(values["total"], float64(s.Took))
	}
	var all []histogram
	for stage := range history.Stages {
		all = append(all, histogramOf(stage.String(), values[stage.String()]))
	}
	return append(all, histogramOf("total", values["total"]))
}

func histogramOf(stage string, values []float64) histogram {
	h := histogram{Stage: stage, N: len(values)}
	bounds := limits()
	for i, d := range bounds {
		h.Bars = append(h.Bars, bar{Label: "up to " + d.String()})
		if i == len(bounds)-1 {
			h.Bars = append(h.Bars, bar{Label: "longer"})
		}
	}
	for _, v := range values {
		i := 0
		for i < len(bounds) && v > bounds[i].Seconds() {
			i++
		}
		h.Bars[i].N++
	}
	if len(values) > 0 {
		slices.Sort(values)
		h.Median = history.Seconds(values[len(values)/2])
		h.P99 = history.Seconds(values[min(len(values)-1, int(math.Ceil(0.99*float64(len(values))))-1)])
	}
	h.Picture = h.draw()
	return h
}

func (h *histogram) draw() markup {
	const width, height, space = 24, 56, 4
	most := 1
	for _, b := range h.Bars {
		most = max(most, b.N)
	}
	var b builder
	label := fmt.Sprintf("%s: %d changes, median %s, p99 %s", h.Stage, h.N, history.Short(h.Median), history.Short(h.P99))
	b.put(`<svg class="histogram" viewBox="0 0 %d %d" role="img" aria-label="%s">`, len(h.Bars)*(width+space), height+2, label)
	for i, bar := range h.Bars {
		tall := float64(height) * float64(bar.N) / float64(most)
		if bar.N > 0 {
			tall = max(tall, 2)
		}
		b.put(`<rect class="ground" x="%d" y="0" width="%d" height="%d" rx="3"/><rect class="bar" x="%d" y="%.1f" width="%d" height="%.1f" rx="3"><title>%s: %d</title></rect>`,
			i*(width+space), width, height, i*(width+space), float64(height)-tall, width, tall, bar.Label, bar.N)
	}
	b.put(`</svg>`)
	return b.markup()
}

// graph is a figure of the last hour, with a bar for each minute.
type graph struct {
	Title, Figure, Detail string
	Picture               markup
}

// hour draws the last minutes: how long changes took, CPU and memory. What is not known is left out.
func hour(minutes []history.Minute) (all []graph) {
	if len(minutes) == 0 {
		return nil
	}
	minutes = minutes[max(0, len(minutes)-history.Minutes):] // a snapshot may have any number
	var changes, memory uint64
	var cpu, mostCPU, slowest history.Seconds
	for _, m := range minutes {
		changes, cpu, memory = changes+m.Changes, cpu+m.CPU, max(memory, m.Memory)
		mostCPU, slowest = max(mostCPU, m.CPU), max(slowest, m.P99)
	}
	draw := func(title, figure, detail string, height func(*history.Minute) float64) {
		all = append(all, graph{title, figure, detail, bars(title+": "+figure+", "+detail, minutes, height)})
	}
	detail := "none"
	if changes > 0 {
		detail = "p99 of the slowest minute " + history.Short(slowest)
	}
	draw("Changes", grouped(changes), detail, func(m *history.Minute) float64 {
		return math.Log10(max(1, float64(m.P99)*1e6)) / 7 // 1 µs to 10 s
	})
	if mostCPU > 0 {
		core := func(s history.Seconds) string { return fmt.Sprintf("%.2g %%", float64(s)/60*100) }
		draw("CPU", core(cpu/history.Seconds(len(minutes)))+" of a core", "at most "+core(mostCPU)+" in a minute", func(m *history.Minute) float64 { return float64(m.CPU / mostCPU) })
	}
	if memory > 0 {
		size := func(bytes uint64) string { return fmt.Sprintf("%d MB", bytes/1_000_000) }
		draw("Memory", size(minutes[len(minutes)-1].Memory), "at most "+size(memory), func(m *history.Minute) float64 { return float64(m.Memory) / float64(memory) })
	}
	return all
}

// bars draws a bar for each minute, the last one on the right; heights are parts of the whole.
func bars(label string, minutes []history.Minute, of func(*history.Minute) float64) markup {
	const width, height, space = 4, 56, 1
	var b builder
	b.put(`<svg class="histogram" viewBox="0 0 %d %d" role="img" aria-label="%s"><rect class="ground" x="0" y="0" width="%d" height="%d" rx="3"/>`,
		history.Minutes*(width+space), height+2, label, history.Minutes*(width+space), height)
	for i := range minutes {
		part := min(1, of(&minutes[i]))
		if part <= 0 {
			continue
		}
		tall := max(2, height*part)
		x := (history.Minutes - len(minutes) + i) * (width + space)
		b.put(`<rect class="bar" x="%d" y="%.1f" width="%d" height="%.1f"><title>%s UTC</title></rect>`, x, height-tall, width, tall, minutes[i].At.UTC().Format("15:04"))
	}
	b.put(`</svg>`)
	return b.markup()
}
