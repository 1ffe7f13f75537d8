// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/ui"
)

// runAxe has axe look at the page, and is a promise of what it finds as JSON.
const runAxe = `axe.run(document, {resultTypes: ["violations", "incomplete"]}).then(r => JSON.stringify({
	passes: r.passes.length, violations: r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html).slice(0, 3).join(" ")),
}))`

// axeProgram reads axe.min.js of the npm package axe-core, which is not part of this
// repository: ci/setup/axe fetches it.
func axeProgram(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("no cache folder for axe: %v", err)
	}
	all, err := filepath.Glob(filepath.Join(cache, "tandem/axe/[0-9]*/axe.min.js"))
	if err != nil || len(all) == 0 {
		t.Skip("axe is not in the cache: ci/setup/axe fetches it with npm for make verify")
	}
	text, err := os.ReadFile(all[len(all)-1])
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Axe itself, in Chromium, has nothing against any page, light or dark, on a phone, a laptop and a wide screen.
// TestPagesAreAccessible and TestContrast check the main rules without it.
func TestAxe(t *testing.T) {
	axe := axeProgram(t)
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: ci/setup/run installs it for make verify")
	}
	in := world(120)
	h := http.NewServeMux()
	h.Handle("/", ui.Handler(source(in)))
	h.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html><body><input name=q><img src=x></body></html>")
	})
	server := httptest.NewServer(h)
	defer server.Close()
	cluster := httptest.NewServer(newFleet(9, 40).handler())
	defer cluster.Close()
	p := openPage(t, browser)
	if r := p.axed(axe, server.URL, "/broken"); len(r.Violations) < 3 {
		t.Errorf("axe finds only %v in a page without language, title, label and alt", r.Violations)
	}
	check := func(at, path string, window [2]int, theme string) {
		t.Helper()
		name := fmt.Sprint(path, " ", window, " ", theme)
		if r := p.axed(axe, at, path); len(r.Violations) > 0 || r.Passes < 10 {
			t.Errorf("%s: %d rules passed, violated: %s", name, r.Passes, strings.Join(r.Violations, "\n"))
		} else {
			t.Logf("%s: %d rules passed", name, r.Passes)
		}
	}
	for _, window := range [][2]int{{500, 900}, {1366, 860}, {2200, 1200}} {
		for _, theme := range []string{"light", "dark"} {
			p.as(window, theme)
			for _, path := range []string{"/ui", "/ui?q=checkout", "/ui/service/shop/checkout-0", "/ui/traffic", "/ui/traffic?service=data/payments-34", "/ui/history", "/ui/explain?from=outside&to=shop/checkout-0:80", "/ui/docs/balancing", "/ui/docs/search?q=nftables"} {
				check(server.URL, path, window, theme)
			}
			for _, path := range []string{"/ui", "/node/node-8/ui", "/node/node-3/ui", "/node/node-8/ui/traffic", "/node/node-8/ui/explain?trace=1&from=outside&to=shop/checkout-0:80"} {
				check(cluster.URL, path, window, theme)
			}
		}
	}
}

// as gives the page the size of a window and a theme.
func (p *page) as(window [2]int, theme string) {
	p.t.Helper()
	p.ask("Emulation.setDeviceMetricsOverride", map[string]any{"width": window[0], "height": window[1], "deviceScaleFactor": 1, "mobile": window[0] < 600}, nil)
	p.ask("Emulation.setScrollbarsHidden", map[string]any{"hidden": true}, nil)
	p.ask("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": theme}}}, nil)
}

// found is what axe says of a page.
type found struct {
	Passes     int
	Violations []string
}

// axed shows an address and has axe look at it. Scripts of the protocol are not bound by the
// page's own policy.
func (p *page) axed(axe, address, path string) (r found) {
	p.t.Helper()
	p.open(address, path)
	var answer struct{ Result struct{ Value string } }
	p.ask("Runtime.evaluate", map[string]any{"expression": axe + ";" + runAxe, "awaitPromise": true}, &answer)
	if err := json.Unmarshal([]byte(answer.Result.Value), &r); err != nil {
		p.t.Fatalf("%s: axe said nothing: %v: %q", path, err, answer.Result.Value)
	}
	return r
}
