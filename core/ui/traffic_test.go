// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/ui"
)

// counted is a source of which Services have more connections at every look.
func counted(looks *atomic.Int32, kind question.Top) ui.Source {
	from := source(world(60))
	from.Top = func(_ context.Context, r question.TopRequest) (question.Top, error) {
		n := uint64(looks.Add(1))
		t := kind
		t.At = time.Now()
		for i, name := range []string{"shop/checkout-0", "data/mail-13", "shop/images-15"} {
			row := question.TopService{Service: name, New: 1000*uint64(i) + 100*n}
			if t.Tracked {
				row.Traffic = &question.TopTraffic{Connections: uint64(9 - i), Bytes: 500 * n}
			}
			if r.Endpoints {
				row.Endpoints = []question.TopAddress{{Address: "10.244.0.1:8080", Proto: "tcp", Pod: "checkout-x", New: 40 * n, Traffic: row.Traffic}}
			}
			t.Services = append(t.Services, row)
		}
		return t, nil
	}
	return from
}

// The page of traffic has what is counted, says what is not, and has rates from the second look on.
func TestTrafficPage(t *testing.T) {
	has := func(page string, want bool, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if strings.Contains(page, text) != want {
				t.Errorf("%q: %v, want %v\n%s", text, !want, want, page)
			}
		}
	}
	for name, c := range map[string]struct {
		kind      question.Top
		has, lack []string
	}{
		"counted": {question.Top{}, []string{">New/s<", ">New<", ">33.3<"}, []string{">Open<", ">Bytes<", "notice"}},
		"open": {
			question.Top{Tracked: true, NotCounted: "connections are not counted in mode nftables", BytesNotCounted: "accounting is off"},
			[]string{">Open<", ">9<", "not counted in mode nftables. Open connections are", "No bytes: accounting is off"},
			[]string{">New<", ">Bytes<"},
		},
		"bytes":   {question.Top{Tracked: true, NotCounted: "connections are not counted"}, []string{">Open<", ">Bytes<", ">Bytes/s<", ">1,000<"}, []string{">New<", "No bytes"}},
		"all":     {question.Top{Tracked: true}, []string{">New<", ">Open<", ">Bytes<"}, []string{"notice"}},
		"nothing": {question.Top{NotCounted: "connections are not counted in mode kernelspace"}, []string{"in mode kernelspace."}, []string{">New<", ">Open<"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := ui.Handler(counted(new(atomic.Int32), c.kind))
				has(get(h, "/ui/traffic").Body.String(), false, "rates of")
				time.Sleep(3 * time.Second)
				second := get(h, "/ui/traffic").Body.String()
				has(second, true, "rates of the last 3 s", "3 Services with connections")
				has(second, true, c.has...)
				has(second, false, c.lack...)
				time.Sleep(10 * time.Minute)
				has(get(h, "/ui/traffic").Body.String(), false, "rates of")
			})
		})
	}
}

// Services and endpoints are sorted by each column.
func TestTrafficSorted(t *testing.T) {
	h := ui.Handler(counted(new(atomic.Int32), question.Top{Tracked: true}))
	for sort, want := range map[string][]string{
		"name": {"data/mail-13", "shop/checkout-0", "shop/images-15"}, "new": {"shop/images-15", "data/mail-13", "shop/checkout-0"},
		"open": {"shop/checkout-0", "data/mail-13", "shop/images-15"}, "": {"shop/checkout-0", "data/mail-13", "shop/images-15"},
	} {
		page := get(h, "/ui/traffic?sort="+sort).Body.String()
		at := func(name string) int { return strings.Index(page, ">"+name+"<") }
		if !slices.IsSortedFunc(want, func(a, b string) int { return at(a) - at(b) }) || at(want[0]) < 0 {
			t.Errorf("by %q: not %s\n%s", sort, want, page)
		}
	}
	page := get(h, "/ui/traffic?service=shop/checkout-0").Body.String()
	for _, want := range []string{"1 endpoint with connections", "10.244.0.1:8080/tcp", "checkout-x", `href="/ui/service/shop/checkout-0"`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

// However many look at how many Services, the kernel is asked at most once in two seconds for each, and little is kept.
func TestTrafficIsLookedAtRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		h := ui.Handler(counted(&looks, question.Top{}))
		for range 100 {
			get(h, "/ui/traffic")
			time.Sleep(100 * time.Millisecond)
		}
		if n := looks.Load(); n > 5 {
			t.Errorf("%d looks in 10 s", n)
		}
		slow := counted(&looks, question.Top{})
		top := slow.Top
		slow.Top = func(ctx context.Context, r question.TopRequest) (question.Top, error) {
			time.Sleep(time.Second)
			return top(ctx, r)
		}
		looks.Store(0)
		h = ui.Handler(slow)
		for range 100 {
			get(h, "/ui/traffic")
			time.Sleep(time.Second)
		}
		if n := looks.Load(); n > 6 {
			t.Errorf("%d looks of a second each in about 100 s", n)
		}
		h = ui.Handler(counted(&looks, question.Top{}))
		var names []string
		for _, s := range world(60).Status.Services {
			names = append(names, s.Name)
		}
		get(h, "/ui/traffic")
		for i := range 40 {
			time.Sleep(time.Millisecond)
			get(h, "/ui/traffic?service="+names[i])
		}
		looks.Store(0)
		get(h, "/ui/traffic?service="+names[39])
		get(h, "/ui/traffic")
		if n := looks.Load(); n != 1 {
			t.Errorf("%d looks, want one at what was forgotten", n)
		}
	})
}

// What cannot be asked now is said, and a node's pages of a cluster have its own traffic.
func TestTrafficOfNodes(t *testing.T) {
	from := source(world(3))
	from.Top = func(context.Context, question.TopRequest) (question.Top, error) {
		return question.Top{}, fmt.Errorf("busy with other queries")
	}
	if w := get(ui.Handler(from), "/ui/traffic"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "busy with other queries") {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
	if w := get(newFleet(9, 40).handler(), "/node/node-8/ui/traffic"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `href="/node/node-8/ui/traffic?service=`) {
		t.Errorf("%d: %s", w.Code, w.Body)
	}
}

// In a browser the rates appear by themselves, what is sorted stays so, and a phone shows the page without a part out of
// sight but the table's own.
func TestTrafficIsLive(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: ci/setup/run installs it for make verify")
	}
	server := httptest.NewServer(ui.Handler(counted(new(atomic.Int32), question.Top{Tracked: true})))
	defer server.Close()
	p := openPage(t, browser)
	p.as([2]int{390, 844}, "light")
	p.open(server.URL, "/ui/traffic?sort=new")
	const first, rates = "document.querySelector('#rows tr th').textContent.trim()", "document.querySelector('#found').textContent.includes('rates of')"
	p.await(first+"+"+rates, "shop/images-15false")
	p.evaluate("document.querySelector('#columns a').focus()")
	p.await(first+"+"+rates, "shop/images-15true")
	if got := p.evaluate("document.activeElement.textContent"); got != "Service" {
		t.Errorf("the focus is at %q", got)
	}
	if got := p.evaluate("document.documentElement.scrollWidth <= innerWidth"); got != "true" {
		t.Errorf("the page is %s wide in a window of 390", p.evaluate("document.documentElement.scrollWidth"))
	}
}
