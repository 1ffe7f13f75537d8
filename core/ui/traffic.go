// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/question"
)

// The page of traffic has what tandem top shows: new connections where the data plane counts them, else open ones, of
// each Service, or of the endpoints of one. Its rates are those since the look before, so the last looks are kept.

// The bounds of looks: whoever sees the pages, the kernel is read by them so often, and for such a part of the time, at
// most.
const (
	lookAge   = 2 * time.Second
	lookShare = 20          // the part is 1/lookShare
	lookGap   = time.Minute // after a longer one there are no rates
	mostLooks = 32
)

// looks are the last ones. The zero value is ready, and safe for concurrent use.
type looks struct {
	mu   sync.Mutex
	last map[subject]look
}

// subject is what a look is at: a node, and one of its Services or all.
type subject struct{ node, service string }

type look struct {
	top  question.Top
	over time.Duration // what its rates are of; 0 where there are none
	at   time.Time
	took time.Duration
}

// at returns a recent look, or asks for one.
func (l *looks) at(ctx context.Context, of subject, ask func(context.Context) (question.Top, error)) (look, error) {
	l.mu.Lock()
	last, known := l.last[of]
	l.mu.Unlock()
	begun := time.Now()
	if known && begun.Sub(last.at) < max(lookAge, lookShare*last.took) {
		return last, nil
	}
	top, err := ask(ctx)
	if err != nil {
		return look{}, err
	}
	now := look{top: top, at: time.Now(), took: time.Since(begun)}
	if over := top.At.Sub(last.top.At); known && over > 0 && over < lookGap {
		now.over = over
		now.top.Since(last.top)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		l.last = map[subject]look{}
	}
	if _, known := l.last[of]; !known && len(l.last) >= mostLooks {
		oldest := of
		for s, x := range l.last {
			if oldest == of || x.at.Before(l.last[oldest].at) {
				oldest = s
			}
		}
		delete(l.last, oldest)
	}
	l.last[of] = now
	return now, nil
}

// trafficPage is the page of the connections of all Services, or of the endpoints of one.
type trafficPage struct {
	shell
	Query, Sort, Service string
	Top                  *question.Top
	Over                 string // what rates are of; empty where there are none
	Counted, Bytes       bool   // there are new connections, and bytes
	Columns              []column
	Found                int
	Rows                 []*trafficRow
	Pager                pager
}

// trafficRow is a Service or an endpoint.
type trafficRow struct {
	Name, Pod, Link string
	Proto           string // of an endpoint
	PerSecond       float64
	New             uint64
	Traffic         question.TopTraffic
}

func (p *pages) traffic(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	v := trafficPage{Query: q.Get("q"), Sort: q.Get("sort"), Service: q.Get("service")}
	title, only, about := "Traffic", question.TopRequest{Open: true}, none()
	if v.Service != "" {
		title, only.Endpoints = "Traffic of "+v.Service, true
		about.Namespace, about.Name, _ = strings.Cut(v.Service, "/")
		only.Filter = about
	}
	from, s, ok := p.begin(w, r, title, "traffic", about)
	if !ok {
		return
	}
	if v.Service != "" && !slices.ContainsFunc(s.Status.Services, func(s question.Service) bool { return s.Name == v.Service }) {
		s.Title = "No Service " + v.Service
		render(w, http.StatusNotFound, &servicePage{shell: s, Name: v.Service})
		return
	}
	seen, err := p.looks.at(r.Context(), subject{r.PathValue("node"), v.Service}, func(ctx context.Context) (question.Top, error) { return from.Top(ctx, only) })
	if err != nil {
		silent(w, s, err)
		return
	}
	v.shell = s
	v.of(seen, number(q.Get("page")))
	render(w, http.StatusOK, &v)
}

// of fills in what a look has shown.
func (v *trafficPage) of(seen look, page int) {
	v.Top, v.Counted = &seen.top, seen.top.NotCounted == ""
	v.Bytes = seen.top.Tracked && seen.top.BytesNotCounted == ""
	if seen.over > 0 {
		v.Over = fmt.Sprintf("%.0f s", max(1, seen.over.Seconds()))
	}
	words := strings.Fields(strings.ToLower(v.Query))
	var rows []*trafficRow
	add := func(r trafficRow, x *question.TopTraffic) {
		if x != nil {
			r.Traffic = *x
		}
		if hasAll(r.Name+" "+r.Pod, words) {
			rows = append(rows, &r)
		}
	}
	for _, s := range seen.top.Services {
		if v.Service == "" {
			add(trafficRow{Name: s.Service, PerSecond: s.PerSecond, New: s.New}, s.Traffic)
			continue
		}
		if s.Service != v.Service { // of a source that has answered with more
			continue
		}
		for _, e := range s.Endpoints {
			add(trafficRow{Name: e.Address, Pod: e.Pod, Proto: e.Proto, PerSecond: e.PerSecond, New: e.New}, e.Traffic)
		}
	}
	if v.Sort == "name" {
		slices.SortStableFunc(rows, func(a, b *trafficRow) int { return strings.Compare(a.Name, b.Name) })
	} else if key := trafficKey(v.Sort); key != nil {
		slices.SortStableFunc(rows, func(a, b *trafficRow) int { return cmp.Compare(key(b), key(a)) })
	}
	here := url.Values{"q": {v.Query}, "service": {v.Service}}
	for _, c := range []struct {
		title, sort string
		shown       bool
	}{
		{"Service", "name", v.Service == ""},
		{"Endpoint", "name", v.Service != ""},
		{"New/s", "rate", v.Counted},
		{"New", "new", v.Counted},
		{"Open", "open", v.Top.Tracked},
		{"Bytes/s", "byterate", v.Bytes},
		{"Bytes", "bytes", v.Bytes},
	} {
		if c.shown {
			here.Set("sort", c.sort)
			v.Columns = append(v.Columns, column{Title: c.title, Link: address(v.Root+"/ui/traffic", here), Sorted: v.Sort == c.sort, Number: c.sort != "name"})
		}
	}
	here.Set("sort", v.Sort)
	v.Found = len(rows)
	v.Rows, v.Pager = paged(rows, page, v.Root+"/ui/traffic", here)
	for _, r := range v.Rows {
		if v.Service == "" {
			r.Link = address(v.Root+"/ui/traffic", url.Values{"service": {r.Name}})
		}
	}
}

// trafficKey is the number that rows are sorted by, the largest first; nil for their own order, the busiest first.
func trafficKey(sort string) func(*trafficRow) float64 {
	switch sort {
	case "rate":
		return func(r *trafficRow) float64 { return r.PerSecond }
	case "new":
		return func(r *trafficRow) float64 { return float64(r.New) }
	case "open":
		return func(r *trafficRow) float64 { return float64(r.Traffic.Connections) }
	case "byterate":
		return func(r *trafficRow) float64 { return r.Traffic.PerSecond }
	case "bytes":
		return func(r *trafficRow) float64 { return float64(r.Traffic.Bytes) }
	}
	return nil
}

func (v *trafficPage) body(b *builder) {
	noun, hint := "Service", "namespace or name"
	if v.Service != "" {
		noun, hint = "endpoint", "address or pod"
		b.put(`<p class="crumb"><a href="%s/ui/traffic">Traffic</a> · <a href="%[1]s/ui/service/%[2]s">%[2]s</a></p>`, v.Root, v.Service)
	}
	b.put(`<h1>%s</h1>
<div id="uncounted" data-live>`, v.Title)
	if why := v.Top.NotCounted; why != "" {
		b.put(`<p class="notice">%s.%s</p>`, why, when(v.Top.Tracked, " Open connections are those that connection tracking has."))
	}
	b.given(`<p class="notice">%s.</p>`, v.Top.EndpointsNotCounted)
	b.given(`<p class="notice">No bytes: %s.</p>`, v.Top.BytesNotCounted)
	b.put(`</div>`)
	b.search(v.Root+"/ui/traffic", v.Query, hint)
	b.given(`<input type="hidden" name="service" value="%s">`, v.Service)
	b.endSearch(v.Sort)
	b.scroll("Traffic")
	b.put(`<caption id="found" data-live>%s %s%s with connections`, grouped(v.Found), noun, when(v.Found != 1, "s"))
	b.given(`; rates of the last %s`, v.Over)
	b.put(`</caption>
<thead id="columns" data-live>`)
	b.heads(v.Columns)
	b.put(`</thead>
<tbody id="rows" data-live>`)
	for _, r := range v.Rows {
		v.row(b, r)
	}
	if len(v.Rows) == 0 {
		b.put(`<tr><td colspan="%d" class="quiet">No connections.</td></tr>`, len(v.Columns))
	}
	b.endScroll()
	b.pager(v.Pager)
}

func (v *trafficPage) row(b *builder, r *trafficRow) {
	b.put(`<tr><th scope="row">`)
	if r.Link != "" {
		b.put(`<a href="%s">%s</a>`, r.Link, r.Name)
	} else {
		b.put(`<span class="mono">%s/%s</span>`, r.Name, r.Proto)
		b.given(ofPod, r.Pod)
	}
	b.put(`</th>`)
	rate := func(perSecond float64, show func(float64) string) {
		b.put(`<td class="num%s">`, when(perSecond == 0, " quiet"))
		if v.Over != "" {
			b.put(`%s</td>`, show(perSecond))
		} else {
			b.put(`–</td>`)
		}
	}
	if v.Counted {
		rate(r.PerSecond, func(f float64) string { return fmt.Sprintf("%.1f", f) })
		b.put(`<td class="num">%s</td>`, grouped(r.New))
	}
	if v.Top.Tracked {
		b.put(`<td class="num">%s</td>`, grouped(r.Traffic.Connections))
	}
	if v.Bytes {
		rate(r.Traffic.PerSecond, func(f float64) string { return grouped(fmt.Sprintf("%.0f", f)) })
		b.put(`<td class="num">%s</td>`, grouped(r.Traffic.Bytes))
	}
	b.put(`</tr>`)
}
