// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
)

// Pages are written by put, which escapes what it is given. No template is executed: html/template finds methods by
// their names, for which the linker would keep every exported method of the whole program.

// markup is HTML that stays as it is.
type markup string

// builder is HTML that grows.
type builder struct{ strings.Builder }

// put writes HTML with values in it, as fmt does. Each value that is neither a number nor markup is escaped: it is text,
// or the whole or a part of an attribute in double quotes. An address in one begins with a path of these pages.
func (b *builder) put(format string, values ...any) {
	for i, v := range values {
		switch v.(type) {
		case markup, int, int64, uint64, float64:
		default:
			values[i] = html.EscapeString(fmt.Sprint(v))
		}
	}
	fmt.Fprintf(b, format, values...)
}

// given writes HTML with a text in it, where there is one.
func (b *builder) given(format, text string) {
	if text != "" {
		b.put(format, text)
	}
}

// markup is what was written.
func (b *builder) markup() markup { return markup(b.String()) }

// when is a part of a page that is there on a condition.
func when(condition bool, part markup) markup {
	if condition {
		return part
	}
	return ""
}

// classed is the attribute for a class; none where that is empty.
func classed(class string) markup {
	if class == "" {
		return ""
	}
	return markup(` class="` + html.EscapeString(class) + `"`)
}

// className is the class of a state.
func className(state string) string { return strings.ToLower(strings.ReplaceAll(state, " ", "-")) }

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

// grouped is a number of any integer type with a comma before each three digits.
func grouped(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func percent(f float64) string { return fmt.Sprintf("%.3g %%", 100*f) }

func seconds(s float64) string { return history.Short(history.Seconds(s)) }

// answer sends a page.
func answer(w http.ResponseWriter, code int, b *builder) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(b.String())) // fails only when the client is gone
}

// view is a page about a proxy.
type view interface {
	frame() *shell
	body(b *builder)
}

// render sends a page.
func render(w http.ResponseWriter, code int, v view) {
	b, s := &builder{}, v.frame()
	s.head(b)
	v.body(b)
	s.foot(b)
	answer(w, code, b)
}

func (s *shell) frame() *shell { return s }

// begin writes the head of a page, whose style and script are in a folder.
func (b *builder) begin(title, folder string, more markup) {
	b.put(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
%s<title>%s</title>
<link rel="stylesheet" href="%[3]sstyle.css">
<script src="%[3]sscript.js" defer></script>
</head>
`, more, title, folder)
}

// head is what all pages about a proxy begin with.
func (s *shell) head(b *builder) {
	title := s.Title + " · Tandem"
	if s.Subject != "" {
		title = s.Title + " · " + s.Subject + " · Tandem"
	}
	b.begin(title, "/ui/", "")
	b.put(`<body`)
	if s.Period > 0 {
		b.put(` data-live="%d"`, s.Period)
	}
	b.put(`>
<a class="skip" href="#content">Skip to content</a>
<header>
  <div class="brand"><span class="name">Tandem</span> <span class="node">%s</span></div>
  <nav aria-label="Pages">
`, s.Subject)
	entry := func(here, to, text string) {
		b.put(` <a href="%s"%s>%s</a>`, to, when(s.Here == here, ` aria-current="page"`), text)
	}
	if s.Many {
		entry("nodes", "/ui", "Nodes")
	}
	if s.Here != "nodes" {
		entry("services", s.Root+"/ui", "Services")
		entry("traffic", s.Root+"/ui/traffic", "Traffic")
		entry("history", s.Root+"/ui/history", "Changes")
		entry("explain", s.Root+"/ui/explain", "Explain")
	}
	health := "bad"
	if s.Healthy {
		health = "good"
	}
	b.put(` <a href="/ui/docs/">Manual</a>
  </nav>
  <div class="now"><button type="button" id="live" hidden aria-pressed="true">Live</button>
  <p id="health" data-live class="health %s"><span class="dot" aria-hidden="true"></span>%s</p></div>
</header>
<main id="content" tabindex="-1">
`, health, s.Health)
	if s.Recorded {
		b.put(`<p class="notice">A snapshot of %s UTC.</p>`, s.Status.At.UTC().Format(time.DateTime))
	}
	b.put(`<div id="reasons" data-live>`)
	for _, r := range s.Reasons {
		b.put(`<p class="notice warn">%s</p>`, r)
	}
	b.put(`</div>`)
}

func (s *shell) foot(b *builder) {
	b.put(`</main><footer>`)
	if of := s.Status; of != nil {
		b.put(`<p>tandem %s · mode %s · %s`, of.Version, of.Mode, of.Source)
		b.given(` · desired state <code>%s</code>`, of.Hash)
		b.put(`</p>`)
	}
	b.put(`</footer></body></html>`)
}

// silentPage is in the place of one without an answer.
type silentPage struct{ shell }

func (v *silentPage) body(b *builder) {
	b.put(`<h1>%s</h1><p class="notice warn" role="alert">%s</p>`, v.Title, v.Err)
	if v.Many {
		b.put(`<p><a href="/ui">All nodes</a></p>`)
	}
}

// scroll begins a table that is broader than some windows, and endScroll ends it.
func (b *builder) scroll(name string) {
	b.put(`<div class="scroll" tabindex="0" role="region" aria-label="%s, scrollable"><table>`, name)
}

func (b *builder) endScroll() { b.put(`</tbody></table></div>`) }

// heads are those of a table that can be sorted.
func (b *builder) heads(columns []column) {
	b.put(`<tr>`)
	for _, c := range columns {
		b.put(`<th scope="col"%s%s>`, when(c.Number, ` class="num"`), when(c.Sorted, ` aria-sort="other"`))
		if c.Link != "" {
			b.put(`<a href="%s">%s</a></th>`, c.Link, c.Title)
		} else {
			b.put(`%s</th>`, c.Title)
		}
	}
	b.put(`</tr>`)
}

// search begins a form that searches, up to its text, and endSearch ends it with the order of rows, which stays.
func (b *builder) search(action, query, hint string) {
	b.put(`<form class="search" role="search" action="%s" method="get">
<span class="field broad"><label for="q">Search</label> <input id="q" name="q" type="search" value="%s" placeholder="%s" autocomplete="off" accesskey="s"></span>
`, action, query, hint)
}

func (b *builder) endSearch(sort string) {
	b.given(`<input type="hidden" name="sort" value="%s">`, sort)
	b.put(`<button type="submit">Show</button></form>`)
}

// states chooses one of them, or all.
func (b *builder) states(all []count, chosen string) {
	b.put(`<span class="field"><label for="state">State</label> <select id="state" name="state"><option value="">all</option>`)
	for _, c := range all {
		b.put(`<option%s>%s</option>`, when(c.State == chosen, " selected"), c.State)
	}
	b.put(`</select></span>`)
}

// pager leads to the pages before and after.
func (b *builder) pager(p pager) {
	if p.Pages <= 1 {
		return
	}
	b.put(`<nav class="pager" aria-label="Pages of the table">`)
	to := func(rel, text string, page int) {
		if page == 0 {
			b.put(`<span class="off">%s</span>`, text)
		} else {
			b.put(`<a rel="%s" href="%s">%s</a>`, rel, p.to(page), text)
		}
	}
	to("prev", "Previous", p.Page-1)
	b.put(`<span>Page %d of %d</span>`, p.Page, p.Pages)
	to("next", "Next", (p.Page+1)%(p.Pages+1))
	b.put("</nav>")
}

func (b *builder) stages(all []histogram) {
	b.put(`<section aria-labelledby="stages"><h2 id="stages">How long changes took</h2><ul class="stages" id="stage-list" data-live>`)
	for _, h := range all {
		b.put(`<li><h3>%s</h3>%s<p><b>%s</b> median <span class="quiet">p99 %s</span></p></li>`, h.Stage, h.Picture, history.Short(h.Median), history.Short(h.P99))
	}
	b.put(`</ul><p class="quiet">A bar for each power of ten: up to 10 µs on the left, more than 10 s on the right.</p></section>`)
}

func (b *builder) changes(root string, all []history.Entry) {
	b.scroll("Changes")
	b.put(`<caption class="hidden">Changes, newest first</caption>
<thead><tr><th scope="col">Time (UTC)</th><th scope="col">Change</th><th scope="col" class="num">Age</th><th scope="col" class="num">Queue</th><th scope="col" class="num">Resolve</th><th scope="col" class="num">Compile</th><th scope="col" class="num">Write</th><th scope="col">Wrote</th></tr></thead>
<tbody id="changes" data-live>
`)
	for i := range all {
		e, text := &all[i], ""
		if e.Sync != nil {
			text = e.Sync.Err
		}
		b.put(`<tr%s><td class="mono">%s</td><td class="change"><span class="verb">%s %s</span> `, when(e.Sync != nil && (text != "" || e.Sync.Failed > 0), ` class="failed"`), clock(e.At), e.Kind, e.Verb)
		if e.Service != "" {
			b.put(`<a href="%s/ui/service/%s">%s</a>`, root, e.Service, e.Subject())
		} else {
			b.put(`%s`, e.Subject())
		}
		b.put(`</td><td class="num">%s</td>`, history.Short(e.Age))
		if e.Sync == nil {
			b.put(`%s`, markup(strings.Repeat(`<td class="num quiet">–</td>`, int(history.Stages))))
		} else {
			for stage := range history.Stages {
				b.put(`<td class="num">%s</td>`, history.Short(e.Sync.Stages.Of(stage)))
			}
		}
		b.put(`<td><span class="verb">%s</span>`, e.Wrote())
		b.given(`<span class="error">%s</span>`, text)
		b.put(`</td></tr>`)
	}
	if len(all) == 0 {
		b.put(`<tr><td colspan="8" class="quiet">No changes yet.</td></tr>`)
	}
	b.endScroll()
	b.put(`<p class="quiet">Newest first. Wrote: +&nbsp;created, ~&nbsp;replaced, -&nbsp;deleted objects.</p>`)
}

func (v *overview) body(b *builder) {
	b.put(`<h1>Services</h1><dl class="figures" id="figures" data-live><div><dt>Services</dt><dd>%s</dd></div>`, grouped(v.Total))
	for _, c := range v.States {
		class := ""
		if c.N > 0 {
			class = className(c.State)
		}
		b.put(`<div%s><dt><a href="%s">%s</a></dt><dd>%s</dd></div>`, classed(class), c.Link, c.State, grouped(c.N))
	}
	b.put(`<div class="next"><dt>Objects</dt><dd>%s</dd></div><div%s><dt>Drift repaired</dt><dd>%s</dd></div>`, grouped(v.Status.Objects), when(v.Status.Drift > 0, ` class="partial"`), grouped(v.Status.Drift))
	for _, in := range v.Status.Inputs {
		b.put(`<div%s><dt>List of %s</dt><dd>`, when(in.Err != "" || in.Unlisted, ` class="failing"`), in.Name)
		if in.Unlisted {
			b.put(`never listed`)
		} else {
			b.put(`%s <span class="unit">old</span>`, seconds(in.Age))
		}
		b.put(`</dd></div>`)
	}
	b.put(`</dl><div id="problems" data-live>`)
	if len(v.Problems) > 0 {
		services := "Services"
		if v.Problematic == 1 {
			services = "Service"
		}
		b.put(`<section aria-labelledby="problems-title"><h2 id="problems-title">Problems of %s %s</h2><ul class="problems">`, grouped(v.Problematic), services)
		for _, p := range v.Problems {
			b.put(`<li class="%s"><a href="%s">%s</a> <b>%s</b> %s</li>`, className(p.State), p.Link, p.Service, p.Reason, p.Detail)
		}
		b.put(`</ul>`)
		if v.More > 0 {
			b.put(`<p class="quiet">and %s more: the pages of the Services have them.</p>`, grouped(v.More))
		}
		b.put(`</section>`)
	}
	b.put(`</div><section aria-labelledby="list"><h2 id="list" class="hidden">All Services</h2>`)
	b.search(v.Root+"/ui", v.Query, "name or address")
	b.states(v.States, v.State)
	b.endSearch(v.Sort)
	v.table(b)
	b.pager(v.Pager)
	b.put(`</section><div id="hour" data-live>`)
	if len(v.Hour) > 0 {
		b.put(`<section aria-labelledby="hour-title"><h2 id="hour-title">The last hour</h2><ul class="stages">`)
		for _, g := range v.Hour {
			b.put(`<li><h3>%s</h3>%s<p><b>%s</b> <span class="quiet">%s</span></p></li>`, g.Title, g.Picture, g.Figure, g.Detail)
		}
		b.put(`</ul><p class="quiet">A bar for each minute, the present one on the right.</p></section>`)
	}
	b.put(`</div>`)
	b.stages(v.Stages)
	b.put(`<section aria-labelledby="last"><h2 id="last">Last changes</h2>`)
	b.changes(v.Root, v.Changes)
	b.put(`<p><a href="%s/ui/history">All changes</a></p></section>`, v.Root)
}

func (v *overview) table(b *builder) {
	const shown = 4 // frontends
	b.scroll("Services")
	b.put(`<caption id="found" data-live>%s of %s Services</caption><thead>`, grouped(v.Pager.Rows), grouped(v.Total))
	b.heads(v.Columns)
	b.put(`</thead><tbody id="rows" data-live>`)
	for _, r := range v.Rows {
		b.put(`<tr><th scope="row"><a href="%s">%s</a></th><td><span class="state %s">%s</span></td><td class="mono">`, r.Link, r.Name, className(r.State), r.State)
		for _, f := range r.Frontends[:min(len(r.Frontends), shown)] {
			b.put(`<span class="address" title="%s">%s/%s</span> `, f.Kind, f.Address, f.Proto)
		}
		if more := len(r.Frontends) - shown; more > 0 {
			b.put(`<span class="quiet">and %d more</span>`, more)
		}
		b.put(`</td><td class="num">%s</td><td class="num%s">%s</td></tr>`, grouped(r.Ready), when(r.NotReady == 0, " quiet"), grouped(r.NotReady))
	}
	if len(v.Rows) == 0 {
		b.put(`<tr><td colspan="5" class="quiet">No Service fits.</td></tr>`)
	}
	b.endScroll()
}

func (v *servicePage) body(b *builder) {
	if v.Service == nil {
		b.put(`<h1>No such Service</h1><p>%s is not known here. <a href="%s/ui">All Services</a></p>`, v.Name, v.Root)
		return
	}
	b.put(`<p class="crumb"><a href="%s/ui">Services</a> · <a href="%s">Traffic by endpoint</a></p>
<h1>%s <span id="state" data-live class="state %s">%s</span></h1>
<div id="problems" data-live>`, v.Root, address(v.Root+"/ui/traffic", url.Values{"service": {v.Name}}), v.Name, className(v.Service.State), v.Service.State)
	for _, p := range v.Service.Problems {
		b.put(`<p class="notice warn"><b>%s</b> %s`, p.Reason, p.Detail)
		b.given(` <span class="quiet">(%s)</span>`, p.Where)
		b.put(`</p>`)
	}
	b.put(`</div>

<section aria-labelledby="way">
<h2 id="way">From frontends to endpoints</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Picture, scrollable"><div id="picture" data-live>%s</div></div>
<p class="legend"><span class="key ready">ready</span> <span class="key terminating">terminating</span> <span class="key not-ready">not ready</span> <span class="key unanswered">unanswered</span> <span class="quiet">The broader a line, the larger the share of new connections.</span></p>
</section>

<section aria-labelledby="frontends">
<h2 id="frontends">Frontends</h2>
`, v.Picture)
	b.scroll("Frontends")
	b.put(`<caption class="hidden">Frontends of %s</caption>
<thead><tr><th scope="col">Address</th><th scope="col">Kind</th><th scope="col">Port</th><th scope="col" class="num">Endpoints</th><th scope="col">Why</th><th scope="col">Sources</th></tr></thead>
<tbody id="frontend-rows" data-live>`, v.Name)
	for _, f := range v.Service.Frontends[:min(len(v.Service.Frontends), maxRows)] {
		b.put(`<tr><th scope="row" class="mono">%s/%s</th><td class="verb">%s</td><td class="name">%s</td><td class="num">%s</td><td class="why">%s</td><td class="name">%s</td></tr>`,
			f.Address, f.Proto, f.Kind, f.Port, grouped(f.Endpoints), model.TextOf(f.Why), question.ShowSources(f.Sources))
	}
	if len(v.Service.Frontends) == 0 {
		b.put(`<tr><td colspan="6" class="quiet">None.</td></tr>`)
	}
	b.endScroll()
	b.put(`</section><section aria-labelledby="endpoints"><h2 id="endpoints">Endpoints</h2>`)
	v.endpoints(b)
	b.pager(v.Pager)
	b.put(`</section><section aria-labelledby="last"><h2 id="last">Changes</h2>`)
	b.changes(v.Root, v.Changes)
	b.put(`</section>`)
}

func (v *servicePage) endpoints(b *builder) {
	b.scroll("Endpoints")
	b.put(`<caption id="found" data-live>%s endpoints</caption>
<thead><tr><th scope="col">Address</th><th scope="col">State</th><th scope="col">Node</th><th scope="col">Share of new connections</th></tr></thead>
<tbody id="rows" data-live>`, grouped(v.Pager.Rows))
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		b.put(`<tr><th scope="row" class="mono">%s`, e.Address)
		b.given(ofPod, e.Pod)
		b.put(`</th><td><span class="state %s">%s</span></td><td class="name">%s</td><td class="why">`, className(e.State), e.State, cmp.Or(e.Node, "unknown"))
		if e.Used {
			b.put(`<meter min="0" max="1" value="%v" aria-label="share of %s">%s</meter> %[3]s`, e.Share, e.Address, percent(e.Share))
		} else {
			b.put(`<span class="quiet">none: %s</span>`, e.Why)
		}
		b.put(`</td></tr>`)
	}
	if len(v.Endpoints) == 0 {
		b.put(`<tr><td colspan="4" class="quiet">No EndpointSlice names this Service, or it has no ports here.</td></tr>`)
	}
	b.endScroll()
}

// ofPod is the pod behind an address, if it is known.
const ofPod = ` <span class="quiet">%s</span>`

func (v *historyPage) body(b *builder) {
	b.put(`<h1>Changes</h1>`)
	b.stages(v.Stages)
	b.put(`<section aria-labelledby="list"><h2 id="list">What came, and what it rewrote</h2>`)
	b.search(v.Root+"/ui/history", v.Query, "object, Service or kind")
	b.put(`<label><input type="checkbox" name="failed" value="1"%s> failed only</label>`, when(v.Failed, " checked"))
	b.endSearch("")
	b.changes(v.Root, v.Changes)
	b.pager(v.Pager)
	b.put(`</section>`)
}

func (v *explainPage) body(b *builder) {
	b.put(`<h1>Explain a connection</h1>
<form class="search" action="%s/ui/explain" method="get">
<span class="field broad"><label for="from">From</label> <input id="from" name="from" type="search" value="%s" placeholder="pod, host, outside or an address" autocomplete="off" required></span>
<span class="field broad"><label for="to">To</label> <input id="to" name="to" type="search" value="%s" placeholder="namespace/service:port or address:port" autocomplete="off" required></span>
<span class="buttons"><button type="submit">Explain</button>%s</span>
</form>
`, v.Root, v.From, v.To, when(v.Traces, ` <button type="submit" name="trace" value="1">Trace</button>`))
	if v.Traces {
		b.put(`<p class="quiet">Trace also reads the data plane back, and compares what it does with what must happen.</p>`)
	}
	if v.Wrong != nil {
		b.put(`<p class="notice warn" role="alert">%s</p>`, v.Wrong)
	}
	if v.Trace != nil {
		v.trace(b, v.Trace)
	}
	if v.Explanation != nil {
		v.decisions(b, v.Explanation)
	}
}

// trace is what the data plane does with the connection.
func (v *explainPage) trace(b *builder, t *question.Trace) {
	b.put(`<section aria-labelledby="trace"><h2 id="trace">The data plane</h2>`)
	for _, f := range t.Findings() {
		b.put(`<p class="notice%s">%s</p>`, when(!t.OK(), " warn"), f)
	}
	b.put(`<dl class="pairs"><dt>must</dt><dd>%s</dd><dt>does</dt><dd>%s</dd></dl>`, question.Fate(t.Outcome, t.Endpoints), question.Fate(t.Installed, t.Reaches))
	for _, o := range t.Others {
		b.put(`<p class="notice warn">%s</p>`, o)
	}
	if len(t.Differences) > 0 {
		const shown = 20
		b.scroll("Differences")
		b.put(`<caption>Objects that are not as wanted</caption><thead><tr><th scope="col">Object</th><th scope="col">State</th><th scope="col">Wanted</th><th scope="col">Found</th></tr></thead><tbody>`)
		for i, d := range t.Differences[:min(len(t.Differences), shown)] {
			b.put(`<tr><th scope="row" class="mono">%s</th><td>%s%s</td><td class="mono">%s</td><td class="mono">%s</td></tr>`,
				d.Object, d.State, when(i < t.Deciding, ": this alone changes the outcome"), d.Wanted, d.Found)
		}
		b.endScroll()
		b.more(len(t.Differences) - shown)
	}
	b.put(`<p class="quiet">%d objects read in %.1f ms.</p></section>`, t.Objects, t.TookMS)
}

// decisions are those about the connection.
func (v *explainPage) decisions(b *builder, e *question.Explanation) {
	b.put(`<section aria-labelledby="result"><h2 id="result">%s to %s/%s: %s</h2>`, e.From, e.To, e.Protocol, e.Outcome)
	if e.Missing {
		b.put(`<p class="notice warn">Not programmed: mode %s does not serve this frontend.</p>`, e.Mode)
	}
	b.given(`<p class="notice warn">Not programmed: %s</p>`, e.Failing)
	for _, p := range e.Problems {
		b.put(`<p class="notice warn"><b>%s</b> %s</p>`, p.Reason, p.Detail)
	}
	b.put(`<div class="scroll" tabindex="0" role="region" aria-label="Decisions, scrollable"><table class="steps"><caption>`)
	if e.Service != "" {
		b.put(`<a href="%s/ui/service/%s">%[2]s</a>: `, v.Root, e.Service)
	}
	b.put(`each decision, with its reason</caption><thead><tr><th scope="col">About</th><th scope="col">Decision</th><th scope="col">Why</th></tr></thead><tbody>`)
	for _, s := range append(slices.Clip(e.Steps), oracle.Step{About: "outcome", Result: e.Outcome, Why: e.Why}) {
		b.put(`<tr><th scope="row">%s</th><td>%s</td><td class="why">%s</td></tr>`, s.About, s.Result, s.Why)
	}
	b.endScroll()
	if len(e.Endpoints) > 0 {
		b.scroll("Endpoints")
		b.put(`<caption>Endpoints that may get it</caption><thead><tr><th scope="col">Address</th><th scope="col">Sees</th></tr></thead><tbody>`)
		for _, to := range e.Endpoints[:min(len(e.Endpoints), maxRows)] {
			sees := "the client"
			if to.SNAT || e.HidesClients {
				sees = "an address of this node"
			}
			b.put(`<tr><th scope="row" class="mono">%s`, to.Addr)
			b.given(ofPod, to.Pod)
			b.put(`</th><td>%s</td></tr>`, sees)
		}
		b.endScroll()
		b.more(len(e.Endpoints) - maxRows)
	}
	b.put("</section>")
}

// more says how many rows a table does not have.
func (b *builder) more(n int) {
	if n > 0 {
		b.put(`<p class="quiet">and %d more</p>`, n)
	}
}
