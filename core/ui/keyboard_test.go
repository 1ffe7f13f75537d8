// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/ui"
)

// page is a page in a browser that does as told, over the pipes of its DevTools protocol
// (https://chromedevtools.github.io/devtools-protocol).
type page struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	session string
	asked   int
	said    []string // in the console, as events: see listen
}

// openPage starts a browser with an empty page of a laptop's size.
func openPage(t *testing.T, browser string) *page {
	t.Helper()
	end, limited := t.Deadline()
	if !limited {
		end = time.Now().Add(time.Hour)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(t.Context()), end) // it is closed in the cleanup
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--user-data-dir="+dir, "--window-size=1366,860", "--remote-debugging-pipe")
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{in, out} // 3 and 4 there
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Close(), out.Close()
	t.Cleanup(func() {
		_, _ = to.WriteString(`{"id": 0, "method": "Browser.close"}` + "\x00")
		_ = cmd.Wait() // it may have ended before
		cancel()
		_, _ = to.Close(), from.Close()
		for end := time.Now().Add(time.Minute); os.RemoveAll(dir) != nil && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond) // its children end a little later, and write until then
		}
	})
	p := &page{t: t, to: to, from: bufio.NewReader(from)}
	var target struct{ TargetID string }
	p.ask("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	p.ask("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	p.session = attached.SessionID
	p.ask("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	return p
}

// listen has what the browser says of pages kept in said: errors, and what their policy refuses.
func (p *page) listen() {
	p.t.Helper()
	for _, domain := range []string{"Log", "Runtime"} {
		p.ask(domain+".enable", nil, nil)
	}
}

// ask sends a command and waits for its answer.
func (p *page) ask(method string, params map[string]any, answer any) {
	p.t.Helper()
	if err := p.try(method, params, answer); err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
}

func (p *page) try(method string, params map[string]any, answer any) error {
	p.asked++
	command := map[string]any{"id": p.asked, "method": method, "params": params}
	if p.session != "" {
		command["sessionId"] = p.session
	}
	text, err := json.Marshal(command)
	if err == nil {
		_, err = p.to.Write(append(text, 0))
	}
	for err == nil {
		var m struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
			Method string
			Params json.RawMessage
		}
		if text, err = p.from.ReadBytes(0); err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		switch m.Method {
		case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
			p.said = append(p.said, string(m.Params))
		}
		switch {
		case err != nil || m.ID != p.asked:
			continue
		case m.Error != nil:
			err = fmt.Errorf("%s", m.Error.Message)
		case answer == nil:
			return nil
		default:
			return json.Unmarshal(m.Result, answer)
		}
	}
	return err
}

// evaluate returns the text that an expression has in the page.
func (p *page) evaluate(expression string) string {
	p.t.Helper()
	var answer struct{ Result struct{ Value any } }
	err := p.try("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")"}, &answer)
	for again := 0; err != nil && again < 100 && strings.Contains(err.Error(), "navigated"); again++ { // meanwhile: another page comes
		time.Sleep(20 * time.Millisecond)
		err = p.try("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")"}, &answer)
	}
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return fmt.Sprint(answer.Result.Value)
}

// await waits until an expression has a value.
func (p *page) await(expression, want string) {
	p.t.Helper()
	got := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got = p.evaluate(expression); got == want {
			return
		}
	}
	p.t.Fatalf("%s is %q, not %q", expression, got, want)
}

// open shows an address.
func (p *page) open(address, path string) {
	p.t.Helper()
	p.ask("Page.navigate", map[string]any{"url": address + path}, nil)
	p.await("location.pathname + location.search + document.readyState", path+"complete")
}

// press presses a key; its text, if any, is typed.
func (p *page) press(key string, code int, text string, modifiers int) {
	p.t.Helper()
	down := map[string]any{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
	if text != "" {
		down["text"] = text
	}
	p.ask("Input.dispatchKeyEvent", down, nil)
	p.ask("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}, nil)
}

func (p *page) tab() { p.t.Helper(); p.press("Tab", 9, "", 0) }

const shift = 8

// stops are what the Tab key must stop at, in the order of the document, and seen is what is
// wrong with how the one that has the focus shows it: that it has no outline, or is not in the window.
const (
	stops = `window.stops = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
		.filter(e => e.tabIndex >= 0 && e.checkVisibility() && !e.disabled && e.type !== "hidden")`
	at   = `window.stops.indexOf(document.activeElement)`
	seen = `(() => {
		const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
		if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 1) return "no outline: " + e.outerHTML.slice(0, 200);
		if (box.bottom <= 0 || box.top >= innerHeight || box.right <= 0 || box.left >= innerWidth) return "not in the window: " + e.outerHTML.slice(0, 200);
		return "";
	})()`
)

// All pages can be used without a mouse: Tab goes through all that can be used, in the order of
// the document, forth and back, and shows where it is; Enter follows links and searches.
func TestKeyboard(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: ci/setup/run installs it for make verify")
	}
	in := world(60)
	server := httptest.NewServer(ui.Handler(source(in)))
	defer server.Close()
	p := openPage(t, browser)
	for _, path := range []string{"/ui", "/ui?q=checkout", "/ui/service/shop/checkout-0", "/ui/traffic", "/ui/history", "/ui/explain"} {
		p.open(server.URL, path)
		n := 0
		if _, err := fmt.Sscan(p.evaluate("("+stops+").length"), &n); err != nil || n < 3 {
			t.Fatalf("%s: %d places to stop at: %v", path, n, err)
		}
		for i := range n {
			p.tab()
			if got := p.evaluate(at); got != fmt.Sprint(i) {
				t.Fatalf("%s: Tab %d leads to place %s of %d: %s", path, i, got, n, p.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
			}
			if wrong := p.evaluate(seen); wrong != "" {
				t.Errorf("%s: place %d: %s", path, i, wrong)
			}
		}
		p.press("Tab", 9, "", shift)
		if got := p.evaluate(at); got != fmt.Sprint(n-2) {
			t.Errorf("%s: back from the last place: %s, not %d", path, got, n-2)
		}
		t.Logf("%s: %d places", path, n)
	}

	p.open(server.URL, "/ui")
	p.press("/", 191, "/", 0)
	p.await("document.activeElement.id", "q")
	for _, letter := range "checkout-1" {
		p.press(string(letter), 0, string(letter), 0)
	}
	p.press("Enter", 13, "\r", 0)
	p.await(`new URLSearchParams(location.search).get("q") + document.readyState`, "checkout-1complete")
	const link = "document.activeElement.closest('#rows') ? document.activeElement.pathname : ''"
	for range 100 {
		if p.tab(); strings.HasPrefix(p.evaluate(link), "/ui/service/") {
			break
		}
	}
	want := p.evaluate(link)
	p.press("Enter", 13, "\r", 0)
	p.await("location.pathname", want)
	if !strings.Contains(want, "/checkout-1") {
		t.Errorf("the first Service of a search for checkout-1 is %s", want)
	}
}

// A page about a running Tandem shows what has changed: the focus, the place that was scrolled to and what was typed
// stay, and nothing is loaded while it is paused. A snapshot's page does not change.
func TestLive(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: ci/setup/run installs it for make verify")
	}
	var state atomic.Value
	state.Store("Programmed")
	var asked atomic.Int32
	live := ui.Of(func(context.Context) (*ui.Input, error) {
		asked.Add(1)
		in := world(60)
		in.Status.Services[7].State = state.Load().(string)
		return in, nil
	})
	recorded := live
	recorded.Recorded = true
	server, file := httptest.NewServer(ui.Handler(live)), httptest.NewServer(ui.Handler(recorded))
	defer server.Close()
	defer file.Close()
	p := openPage(t, browser)
	p.open(server.URL, "/ui?sort=name")
	name := p.evaluate("document.querySelectorAll('#rows tr')[7].querySelector('a').textContent")
	const shown = "document.querySelectorAll('#rows tr')[7].children[1].textContent"
	p.await(shown, "Programmed")
	p.evaluate("document.querySelectorAll('#rows a')[7].focus(), scrollTo(0, 300), document.getElementById('q').value = 'typed'")
	state.Store("Failing")
	p.await(shown, "Failing")
	if got := p.evaluate("document.activeElement.textContent"); got != name {
		t.Errorf("the focus is at %q, it was at %q", got, name)
	}
	if got := p.evaluate("scrollY + document.getElementById('q').value"); got != "300typed" {
		t.Errorf("after the change: %s", got)
	}
	still := func(what string) {
		t.Helper()
		time.Sleep(200 * time.Millisecond)
		before := asked.Load()
		time.Sleep(5 * time.Second)
		if more := asked.Load() - before; more > 0 {
			t.Errorf("%s: %d more loads", what, more)
		}
	}
	p.evaluate("document.getElementById('live').click()")
	still("paused")
	p.open(file.URL, "/ui")
	still("a snapshot")
}

// A page that has turned into another one follows by itself: that of a node which answers again, and that of a Service
// which is gone and comes back.
func TestLiveBecomesAnotherPage(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: ci/setup/run installs it for make verify")
	}
	var gone atomic.Bool
	one := httptest.NewServer(ui.Handler(ui.Of(func(context.Context) (*ui.Input, error) {
		in := world(20)
		if gone.Load() {
			in.Status.Services = nil
		}
		return in, nil
	})))
	defer one.Close()
	f := newFleet(3, 20)
	many := httptest.NewServer(f.handler())
	defer many.Close()
	const title = "document.querySelector('h1').firstChild.textContent.trim() + (document.getElementById('rows') ? ', rows' : '')"
	p := openPage(t, browser)
	p.open(one.URL, "/ui/service/shop/checkout-0")
	p.await(title, "shop/checkout-0, rows")
	gone.Store(true)
	p.await(title, "No such Service")
	gone.Store(false)
	p.await(title, "shop/checkout-0, rows")
	p.open(many.URL, "/node/node-3/ui")
	p.await(title, "No answer")
	f.mu.Lock()
	f.nodes["node-3"] = f.nodes["node-2"]
	f.mu.Unlock()
	p.await(title, "Services, rows")
}
