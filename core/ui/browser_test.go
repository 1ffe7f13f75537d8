// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/ui"
)

// Windows that pages are looked at in, as width and height.
func windows() map[string][2]int {
	return map[string][2]int{"phone": {390, 844}, "broad phone": {500, 900}, "laptop": {1366, 860}, "wide": {2200, 1200}}
}

// A real browser draws every page, on a phone, a laptop and a wide screen, light and dark, and says nothing of refused
// style, script or errors; nothing but what scrolls by itself is wider than the window. Where TANDEM_SCREENSHOTS names
// a folder, the pictures are kept there, of a page that is taller than the window also the whole.
func TestInABrowser(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: ci/setup/run installs it for make verify")
	}
	dir, themes, more := os.Getenv("TANDEM_SCREENSHOTS"), []string{"light", "dark"}, []int{1, 5000}
	if dir == "" { // one of each is enough to know
		themes, more = themes[:1], nil
	}
	type shown struct{ page, at, path string }
	var all []shown
	serve := func(pages http.Handler, at map[string]string) {
		server := httptest.NewServer(pages)
		t.Cleanup(server.Close)
		for page, path := range at {
			all = append(all, shown{page, server.URL, path})
		}
	}
	serve(ui.Handler(source(world(300))), map[string]string{
		"overview": "/ui", "service": "/ui/service/shop/checkout-0", "traffic": "/ui/traffic", "endpoints": "/ui/traffic?service=data/payments-34", "history": "/ui/history", "explain": "/ui/explain?from=outside&to=shop/checkout-0:80",
		"trace": "/ui/explain?trace=1&from=outside&to=shop/checkout-0:80", "manual": "/ui/docs/", "modes": "/ui/docs/modes",
	})
	serve(newFleet(40, 120).handler(), map[string]string{"cluster": "/ui", "cluster-node": "/node/node-8/ui", "cluster-silent": "/node/node-3/ui"})
	for _, n := range more {
		serve(ui.Handler(source(world(n))), map[string]string{fmt.Sprint("overview-", n): "/ui", fmt.Sprint("traffic-", n): "/ui/traffic", fmt.Sprint("history-", n): "/ui/history"})
	}
	serve(ui.Handler(rough()), map[string]string{
		"rough": "/ui", "rough-service": "/ui/service/shop/checkout-0", "rough-traffic": "/ui/traffic?service=shop/checkout-0", "rough-history": "/ui/history", "rough-explain": "/ui/explain?from=outside&to=shop/checkout-0:80",
	})
	p := openPage(t, browser)
	p.listen()
	for _, s := range all {
		for size, window := range windows() {
			for _, theme := range themes {
				name := fmt.Sprintf("%s-%s-%s", s.page, size, theme)
				t.Run(name, func(t *testing.T) {
					p.t, p.said = t, nil
					p.as(window, theme)
					p.open(s.at, s.path)
					if got := p.evaluate(tooWide); got != "" {
						t.Errorf("wider than the window: %s", got)
					}
					if got := p.evaluate(pastMargin); got != "" {
						t.Errorf("past the margin: %s", got)
					}
					if window[0] < 600 {
						if got := p.evaluate(unhinted); got != "" {
							t.Errorf("nothing shows that it goes on at the right: %s", got)
						}
					}
					if got := p.evaluate(ragged); got != "" {
						t.Errorf("a lone figure in its row: %s", got)
					}
					if got := p.evaluate(overlapping); got != "" {
						t.Errorf("texts of the picture overlap: %s", got)
					}
					if got := p.evaluate(spilling); got != "" {
						t.Errorf("a tile or the picture is too narrow for what is in it: %s", got)
					}
					if got := p.evaluate(apart); got != "" {
						t.Errorf("in two rows are %s", got)
					}
					if dir != "" {
						p.draw(filepath.Join(dir, name), window)
					}
					for _, line := range p.said {
						if own := strings.Contains(line, `"source":"network"`); !own || !strings.Contains(line, "/favicon.ico") && !strings.Contains(line, s.path+`"`) { // no answer is an error of the page's own
							t.Errorf("%s: %s", s.path, line)
						}
					}
				})
			}
		}
	}
	p.t = t
}

// rough is a source of the longest names, addresses and reasons that there are.
func rough() ui.Source {
	name := strings.Repeat("long-", 12) + "end" // 63 characters
	in := world(40)
	for i := range in.Status.Services {
		s := &in.Status.Services[i]
		if i%5 == 2 {
			s.Name = name + "/" + name
		}
		if i%5 > 2 {
			s.Problems = append(s.Problems, question.Problem{Reason: "AddressConflict", Detail: "external IP 2001:db8:1234:5678:9abc:def0:1234:5678 is held by Service " + name + "/" + name + ", which is older", Where: "/etc/tandem/manifests/" + name + ".yaml:12"})
		}
		for range i % 7 {
			s.Frontends = append(s.Frontends, question.Frontend{Port: name, Kind: "load balancer IP", Address: "[2001:db8:1234:5678:9abc:def0:1234:5678]:30080", Proto: "sctp", Why: "ClusterEndpoints"})
		}
	}
	in.Status.Node, in.Status.Healthy, in.Status.Reasons = name, false, []string{"endpointslices: up to date 95 s ago: Get \"https://api." + name + ".example:6443/apis/discovery.k8s.io/v1/endpointslices\": connection refused"}
	in.Status.Inputs[0].Unlisted = true
	from := source(in)
	services, changes, top := from.Services, from.Changes, from.Top
	from.Services = func(ctx context.Context, r question.ServicesRequest) (question.Services, error) {
		all, err := services(ctx, r)
		for i := range all.Services {
			s := &all.Services[i]
			for _, f := range s.Frontends {
				f.Address, f.Kind, f.Family, f.Proto, f.Why = "[2001:db8:1234:5678:9abc:def0:1234:5678]:30080", "load balancer IP", "IPv6", "sctp", "balanced over ready endpoints of this node, since the policy is Local"
				f.Sources = []string{"2001:db8:1234:5678::/64", "198.51.100.0/24", "203.0.113.0/24"}
				s.Frontends = append(s.Frontends, f)
			}
			for _, e := range s.Endpoints {
				e.Address, e.Protocol, e.Pod, e.Node = "[fd00:10:244:1234:5678:9abc:def0:1234]:8080", "sctp", name+"-5d9c7b8f6d-x2x4z", name
				s.Endpoints = append(s.Endpoints, e)
			}
		}
		return all, err
	}
	from.Changes = func(ctx context.Context, f history.Filter) (history.Document, error) {
		d, err := changes(ctx, f)
		d.Entries = slices.Clone(d.Entries)
		for i := range d.Entries {
			e := &d.Entries[i]
			e.Detail = "endpoint [fd00:10:244:1234:5678:9abc:def0:1234]:8080 added, 10.244.1.3:8080 not ready"
			if i%4 == 1 {
				e.Object, e.Service = name+"/"+name+"-x2x4z", name+"/"+name
			}
			if i%6 == 5 {
				e.Sync = nil
			}
		}
		return d, err
	}
	from.Top = func(ctx context.Context, r question.TopRequest) (question.Top, error) {
		all, err := top(ctx, r)
		for i := range all.Services {
			s := &all.Services[i]
			s.Endpoints = append(s.Endpoints, question.TopAddress{Address: "[fd00:10:244:1234:5678:9abc:def0:1234]:8080", Proto: "tcp", Pod: name + "-5d9c7b8f6d-x2x4z", New: 12_345_678_901})
		}
		return all, err
	}
	return from
}

// tooWide are the elements that reach out of the window at its right and do not scroll by themselves.
const tooWide = `[...document.querySelectorAll("body *")].filter(e =>
	e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre") && e.checkVisibility()).map(e => e.outerHTML.slice(0, 200)).join("\n")`

// pastMargin are the elements of the page's parts that reach over the margin at the right of these.
const pastMargin = `[...document.querySelectorAll("header, main, footer")].flatMap(part => {
	const margin = part.getBoundingClientRect().right - parseFloat(getComputedStyle(part).paddingRight);
	return [...part.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > margin + 1 && !e.closest(".scroll, pre") && e.checkVisibility());
}).map(e => e.outerHTML.slice(0, 200)).join("\n")`

// unhinted are what scrolls sideways without a shadow at its edges, where a browser shows no bar.
const unhinted = `[...document.querySelectorAll(".scroll, pre")].filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).backgroundImage === "none").map(e => e.textContent.trim().slice(0, 60)).join("\n")`

// ragged are figures that are alone in their row, beside nothing.
const ragged = `(() => {
	const tiles = [...document.querySelectorAll(".figures div")], alone = [];
	for (const tile of tiles) {
		const room = tile.parentElement.clientWidth - tile.offsetWidth;
		if (room > 1 && tiles.filter(t => t.offsetTop === tile.offsetTop).length === 1) alone.push(tile.textContent);
	}
	return alone.join("\n");
})()`

// spilling are the figures whose text reaches out of their tile, and pictures of a Service that scroll sideways.
const spilling = `[...document.querySelectorAll(".figures div *, .scroll:has(.picture)")].filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).map(e => e.textContent.slice(0, 200)).join("\n")`

// overlapping are texts of a box in a Service's picture that cover each other, and apart are buttons beside each other
// in a form, and links to the pages, that are not in one row.
const (
	overlapping = `[...document.querySelectorAll(".picture g")].filter(g => {
		if (!g.checkVisibility()) return false;
		const [a, b] = [...g.querySelectorAll("text")].map(e => e.getBoundingClientRect());
		return a && b && a.right + 2 > b.left;
	}).map(g => g.textContent).join("\n")`
	apart = `[...document.querySelectorAll("form button + button, header nav a + a")].filter(b => b.offsetTop !== b.previousElementSibling.offsetTop).map(b => b.textContent).join("\n")`
)

// draw writes the picture of the window, and where the page is taller also that of the whole page.
func (p *page) draw(file string, window [2]int) {
	p.t.Helper()
	height, err := strconv.Atoi(p.evaluate("document.documentElement.scrollHeight"))
	if err != nil {
		p.t.Fatal(err)
	}
	heights := map[string]int{".png": window[1]}
	if height > window[1] {
		heights["-whole.png"] = min(height, 10_000)
	}
	for suffix, height := range heights {
		var picture struct{ Data []byte }
		p.ask("Page.captureScreenshot", map[string]any{
			"captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": window[0], "height": height, "scale": 1},
		}, &picture)
		if err := os.WriteFile(file+suffix, picture.Data, 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
}
