// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/ui"
)

// runAxe has axe look at a page, and writes what it finds into it.
const runAxe = `</script><script>
addEventListener("load", () => axe.run(document, {resultTypes: ["violations", "incomplete"]}).then(r => {
	const out = document.createElement("pre");
	out.id = "axe";
	out.textContent = JSON.stringify({passes: r.passes.length, violations: r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html).slice(0, 3).join(" "))});
	document.body.append(out);
}));
</script></body>`

// axeProgram reads axe.min.js of the npm package axe-core, which is not part of this
// repository: ci/setup/axe fetches it.
func axeProgram(t *testing.T) []byte {
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
	return text
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
	// The pages' own policy refuses foreign scripts: they are served without it here.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := get(h, r.URL.RequestURI())
		body := answer.Body.Bytes()
		if strings.HasPrefix(answer.Header().Get("Content-Type"), "text/html") {
			body = bytes.Replace(body, []byte("</body>"), []byte("<script>"+string(axe)+runAxe), 1)
		}
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		_, _ = w.Write(body) // fails where the browser has left
	}))
	defer server.Close()
	if r := axed(t, browser, server.URL+"/broken", "500,900", "light"); len(r.Violations) < 3 {
		t.Errorf("axe finds only %v in a page without language, title, label and alt", r.Violations)
	}
	for _, path := range []string{"/ui", "/ui?q=checkout", "/ui/service/shop/checkout-0", "/ui/history"} {
		for _, window := range []string{"500,900", "1366,860", "2200,1200"} {
			for _, theme := range []string{"light", "dark"} {
				name := fmt.Sprint(path, " ", window, " ", theme)
				if r := axed(t, browser, server.URL+path, window, theme); len(r.Violations) > 0 || r.Passes < 10 {
					t.Errorf("%s: %d rules passed, violated: %s", name, r.Passes, strings.Join(r.Violations, "\n"))
				} else {
					t.Logf("%s: %d rules passed", name, r.Passes)
				}
			}
		}
	}
}

// found is what axe says of a page.
type found struct {
	Passes     int
	Violations []string
}

func axed(t *testing.T, browser, address, window, theme string) (r found) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	args := []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir=" + t.TempDir(), "--window-size=" + window,
		"--virtual-time-budget=20000", "--dump-dom",
	}
	if theme == "dark" {
		args = append(args, "--blink-settings=preferredColorScheme=0")
	}
	out, err := exec.CommandContext(ctx, browser, append(args, address)...).Output()
	if err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	_, text, _ := strings.Cut(string(out), `<pre id="axe">`)
	text, _, _ = strings.Cut(text, "</pre>")
	if err := json.Unmarshal([]byte(html.UnescapeString(text)), &r); err != nil {
		t.Fatalf("%s: axe said nothing: %v", address, err)
	}
	return r
}
