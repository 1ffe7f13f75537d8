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
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/ui"
)

// A real browser draws every page, on a phone, a laptop and a wide screen, light and
// dark, and says nothing of refused style, script or errors. The pictures are kept in
// TANDEM_SCREENSHOTS, where that names a folder.
func TestInABrowser(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: ci/setup/run installs it for make verify")
	}
	dir := os.Getenv("TANDEM_SCREENSHOTS")
	sizes, themes, more := map[string]string{"phone": "500,900", "laptop": "1366,860", "wide": "2200,1200"}, []string{"light", "dark"}, []int{1, 5000}
	if dir == "" { // one of each is enough to know
		dir = t.TempDir()
		sizes, themes, more = map[string]string{"laptop": "1366,860"}, []string{"light"}, nil
	}
	addresses := map[string]string{}
	serve := func(pages http.Handler, at map[string]string) {
		server := httptest.NewServer(pages)
		t.Cleanup(server.Close)
		for page, path := range at {
			addresses[page] = server.URL + path
		}
	}
	serve(ui.Handler(source(world(300))), map[string]string{"overview": "/ui", "service": "/ui/service/shop/checkout-0", "traffic": "/ui/traffic", "endpoints": "/ui/traffic?service=data/payments-34", "history": "/ui/history", "explain": "/ui/explain?from=outside&to=shop/checkout-0:80", "manual": "/ui/docs/", "modes": "/ui/docs/modes"})
	serve(newFleet(40, 120).handler(), map[string]string{"cluster": "/ui", "cluster-node": "/node/node-8/ui"})
	for _, n := range more {
		serve(ui.Handler(source(world(n))), map[string]string{fmt.Sprint("overview-", n): "/ui", fmt.Sprint("traffic-", n): "/ui/traffic", fmt.Sprint("history-", n): "/ui/history"})
	}
	for page, address := range addresses {
		for size, window := range sizes {
			for _, theme := range themes {
				name := fmt.Sprintf("%s-%s-%s", page, size, theme)
				t.Run(name, func(t *testing.T) {
					screenshot(t, browser, address, filepath.Join(dir, name+".png"), window, theme)
				})
			}
		}
	}
}

func screenshot(t *testing.T, browser, address, file, window, theme string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	args := []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--enable-logging=stderr", "--v=0",
		"--user-data-dir=" + t.TempDir(), "--window-size=" + window, "--screenshot=" + file,
	}
	if theme == "dark" {
		args = append(args, "--blink-settings=preferredColorScheme=0")
	}
	out, err := exec.CommandContext(ctx, browser, append(args, address)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", address, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "CONSOLE") {
			t.Errorf("%s: %s", address, line)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Size() < 10_000 {
		t.Errorf("%s: no picture: %v\n%s", address, err, out)
	}
}
