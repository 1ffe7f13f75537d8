// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/question"
)

// The picture of a Service has a fan for each port in each family: its frontends on the left, its endpoints on the
// right, with a line to each endpoint that is used, as broad as its share.
const (
	mostFans  = 8  // the tables have them all
	mostDrawn = 24 // frontends, and endpoints, of a fan
	rowHeight = 34
	boxWidth  = 275
	spacing   = 150
	caption   = 22 // above a fan
)

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

func picture(name, state string, fronts []question.FrontendDetail, ends []endpoint) template.HTML {
	used := 0
	for _, e := range ends {
		if e.Used {
			used++
		}
	}
	ports := portsOf(fronts, ends)
	drawn := ports[:min(len(ports), mostFans)]
	var fans strings.Builder
	y := 0
	for _, p := range drawn {
		y = p.fan(&fans, y, state)
	}
	if more := len(ports) - len(drawn); more > 0 {
		fmt.Fprintf(&fans, `<text class="more" x="0" y="%d">and %d more ports</text>`, y+16, more)
		y += caption
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="picture" viewBox="0 0 %d %d" role="img" aria-labelledby="picture-title"><title id="picture-title">%s: %d frontends, %d endpoints, %d of them used</title>`,
		2*boxWidth+spacing, max(y, caption), html.EscapeString(name), len(fronts), len(ends), used)
	b.WriteString(fans.String() + "</svg>")
	return template.HTML(b.String()) // every text in it is escaped where it is written
}

// fan draws a port from a height on, and returns where the next one begins.
func (p *port) fan(b *strings.Builder, top int, state string) (next int) {
	fronts, drawn, ends := min(len(p.fronts), mostDrawn), min(len(p.ends), mostDrawn), p.ends
	rows := max(fronts, drawn, 1)
	name := strings.TrimSpace(p.name + " (" + p.proto + ")")
	fmt.Fprintf(b, `<text class="more" x="0" y="%d">%s, %s</text>`, top+16, html.EscapeString(name), html.EscapeString(p.family))
	top += caption
	middle := float64(top) + float64(rows*rowHeight)/2
	at := func(i, n int) float64 { return middle + (float64(i)-float64(n-1)/2)*rowHeight }
	const hub = float64(boxWidth) + spacing/2
	for i := range fronts {
		curve(b, "line", boxWidth, at(i, fronts), hub, middle, 1.5)
	}
	for i, e := range ends[:drawn] {
		if e.Used {
			curve(b, "line "+className(e.State), hub, middle, boxWidth+spacing, at(i, drawn), 1.5+4*e.Share)
		}
	}
	fmt.Fprintf(b, `<circle class="hub %s" cx="%.0f" cy="%.1f" r="7"/>`, className(state), hub, middle)
	for i, f := range p.fronts[:fronts] {
		box(b, "frontend", 0, at(i, fronts), f.Address, f.Kind)
	}
	for i, e := range ends[:drawn] {
		box(b, "endpoint "+className(e.State), boxWidth+spacing, at(i, drawn), e.Address, e.State)
	}
	next = top + rows*rowHeight
	below := func(x, more int) {
		if more > 0 {
			fmt.Fprintf(b, `<text class="more" x="%d" y="%d">and %d more</text>`, x, top+rows*rowHeight+14, more)
			next = top + rows*rowHeight + caption
		}
	}
	below(0, len(p.fronts)-fronts)
	below(boxWidth+spacing, len(ends)-drawn)
	return next + 6
}

// className is the class of a state, escaped: a snapshot may have any text as one.
func className(s string) string {
	return html.EscapeString(strings.ReplaceAll(strings.ToLower(s), " ", "-"))
}

func curve(b *strings.Builder, class string, x1, y1, x2, y2, width float64) {
	mid := (x1 + x2) / 2
	fmt.Fprintf(b, `<path class="%s" d="M%.0f %.1fC%.0f %.1f %.0f %.1f %.0f %.1f" stroke-width="%.1f"/>`, class, x1, y1, mid, y1, mid, y2, x2, y2, width)
}

func box(b *strings.Builder, class string, x int, y float64, text, detail string) {
	title := ""
	if short := shorten(text, room(detail)); short != text {
		title, text = "<title>"+html.EscapeString(text)+"</title>", short
	}
	fmt.Fprintf(b, `<g class="%s">%s<rect x="%d" y="%.1f" width="%d" height="26" rx="6"/><text x="%d" y="%.1f">%s</text><text class="detail" x="%d" y="%.1f" text-anchor="end">%s</text></g>`,
		class, title, x, y-13, boxWidth, x+10, y+4.5, html.EscapeString(text), x+boxWidth-10, y+4.5, html.EscapeString(detail))
}

// room is how many characters of an address fit beside a detail, from the widths of both fonts.
func room(detail string) int {
	const address, other, around = 7.9, 6.3, 30
	return max(18, int((boxWidth-around-other*float64(utf8.RuneCountInString(detail)))/address))
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
	Picture     template.HTML
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

func (h *histogram) draw() template.HTML {
	const width, height, space = 24, 56, 4
	most := 1
	for _, b := range h.Bars {
		most = max(most, b.N)
	}
	var b strings.Builder
	label := fmt.Sprintf("%s: %d changes, median %s, p99 %s", h.Stage, h.N, history.Short(h.Median), history.Short(h.P99))
	fmt.Fprintf(&b, `<svg class="histogram" viewBox="0 0 %d %d" role="img" aria-label="%s">`, len(h.Bars)*(width+space), height+2, html.EscapeString(label))
	for i, bar := range h.Bars {
		tall := float64(height) * float64(bar.N) / float64(most)
		if bar.N > 0 {
			tall = max(tall, 2)
		}
		fmt.Fprintf(&b, `<rect class="ground" x="%d" y="0" width="%d" height="%d" rx="3"/><rect class="bar" x="%d" y="%.1f" width="%d" height="%.1f" rx="3"><title>%s: %d</title></rect>`,
			i*(width+space), width, height, i*(width+space), float64(height)-tall, width, tall, html.EscapeString(bar.Label), bar.N)
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// graph is a figure of the last hour, with a bar for each minute.
type graph struct {
	Title, Figure, Detail string
	Picture               template.HTML
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
	draw("Changes", fmt.Sprint(changes), detail, func(m *history.Minute) float64 {
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
func bars(label string, minutes []history.Minute, of func(*history.Minute) float64) template.HTML {
	const width, height, space = 4, 56, 1
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="histogram" viewBox="0 0 %d %d" role="img" aria-label="%s"><rect class="ground" x="0" y="0" width="%d" height="%d" rx="3"/>`,
		history.Minutes*(width+space), height+2, html.EscapeString(label), history.Minutes*(width+space), height)
	for i := range minutes {
		part := min(1, of(&minutes[i]))
		if part <= 0 {
			continue
		}
		tall := max(2, height*part)
		x := (history.Minutes - len(minutes) + i) * (width + space)
		fmt.Fprintf(&b, `<rect class="bar" x="%d" y="%.1f" width="%d" height="%.1f"><title>%s UTC</title></rect>`, x, height-tall, width, tall, minutes[i].At.UTC().Format("15:04"))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}
