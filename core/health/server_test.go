// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
)

func ok(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }

// serve runs a server on loopback and returns its address.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := &health.Server{Name: "test", Address: "127.0.0.1:0", Handler: h, HardFail: true, Log: quiet}
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	addr := s.Addr().String()
	run(t, s.Run)
	return addr
}

// serveChecks runs the probes of a healthy node and the check of a Service with endpoints, and returns their addresses.
func serveChecks(t *testing.T) (node, service string) {
	t.Helper()
	l := newLab(t)
	run(t, l.Run)
	l.set(port("web", "http", model.IPv4, 32080, 2))
	l.up("tcp4 0.0.0.0:32080")
	probes := health.Probes(func() question.Health { return question.Health{Synced: true} }, nil)
	return serve(t, probes.ServeHTTP), l.addr("tcp4 0.0.0.0:32080")
}

func TestPagesAnswerReadersOnly(t *testing.T) {
	addr := serve(t, health.Pages(sources()).ServeHTTP)
	for _, c := range []struct {
		method, body string
		code         int
	}{
		{"GET", "", 200},
		{"HEAD", "", 200},
		{"POST", "", 405},
		{"POST", "x", 405},
		{"PUT", "", 405},
		{"DELETE", "", 405},
		{"OPTIONS", "", 405},
		{"TRACE", "", 405},
		{"BREW", "", 405},
		{"GET", "x", 413},
	} {
		code, header, _, err := get(c.method, "http://"+addr+"/metrics", strings.NewReader(c.body))
		if err != nil || code != c.code {
			t.Errorf("%s with %q: %d, %v; want %d", c.method, c.body, code, err, c.code)
		}
		if code == 405 && header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: Allow is %q", c.method, header.Get("Allow"))
		}
	}
}

// Load balancers choose the method of their checks: HAProxy's "option httpchk" asks with OPTIONS,
// others with POST. kube-proxy answers all of them as GET.
func TestProbesAnswerAnyMethod(t *testing.T) {
	node, service := serveChecks(t)
	for name, url := range map[string]string{"health address": "http://" + node + "/healthz", "healthCheckNodePort": "http://" + service + "/"} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "TRACE", "BREW"} {
			for _, body := range []string{"", "x", strings.Repeat("x", 64<<10)} {
				code, header, text, err := get(method, url, strings.NewReader(body))
				if err != nil || code != 200 || header.Get("Content-Type") != "application/json" || (text == "") != (method == "HEAD") {
					t.Errorf("%s: %s with %d bytes: %d, %v, %q, %v", name, method, len(body), code, header, text, err)
				}
			}
		}
	}
}

// Who sends the body of a request only once the answer is there keeps the answer: its connection is not reset.
func TestLateBodiesLoseNoAnswer(t *testing.T) {
	node, service := serveChecks(t)
	for name, addr := range map[string]string{"health address": node, "healthCheckNodePort": service, "metrics": serve(t, health.Pages(sources()).ServeHTTP)} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		const body = 64 << 10
		if _, err := fmt.Fprintf(c, "POST /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", body); err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 1)
		if _, err := io.ReadFull(c, first); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := io.WriteString(c, strings.Repeat("x", body)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(first)+string(answer), "HTTP/1.1 ") {
			t.Errorf("%s: %q, %v", name, answer, err)
		}
	}
}

// A body that never ends holds up neither its answer nor the server.
func TestProbesReadNoBody(t *testing.T) {
	addr := serve(t, health.Probes(func() question.Health { return question.Health{Synced: true} }, nil).ServeHTTP)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := fmt.Fprint(c, "POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || r.StatusCode != 200 || !r.Close {
		t.Fatalf("%+v, %v", r, err)
	}
	sent, chunk := 0, "1000\r\n"+strings.Repeat("x", 4096)+"\r\n"
	for err == nil && sent < 64<<20 {
		_, err = io.WriteString(c, chunk)
		sent += len(chunk)
	}
	if err == nil {
		t.Errorf("%d bytes of a body were taken", sent)
	}
}

func TestServerRefusesHugeHeaders(t *testing.T) {
	addr := serve(t, ok)
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	sent := 0
	_, err = fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Huge: ")
	for chunk := strings.Repeat("x", 4096); err == nil && sent < 64<<20; sent += len(chunk) {
		_, err = io.WriteString(c, chunk)
	}
	if err == nil {
		t.Fatalf("%d bytes of header were taken", sent)
	}
	line, _ := bufio.NewReader(c).ReadString('\n')
	if line != "" && !strings.Contains(line, "431") {
		t.Errorf("answer %q", line)
	}
	if code, _, _, err := get("GET", "http://"+addr+"/", nil); err != nil || code != 200 {
		t.Errorf("after that: %d, %v", code, err)
	}
}

// Clients that say nothing, or one byte now and then, keep no probe from its
// answer, however many they are, and are bounded in number.
func TestSlowClientsBlockNoOthers(t *testing.T) {
	addr := serve(t, ok)
	before := runtime.NumGoroutine()
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	for i := range 1000 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
		if i%2 == 0 {
			_, _ = io.WriteString(c, "G")
		}
		if i%100 != 99 {
			continue
		}
		start := time.Now()
		if code, _, _, err := get("GET", "http://"+addr+"/", nil); err != nil || code != 200 || time.Since(start) > 4*time.Second { // idle ones are closed after 5 s
			t.Fatalf("beside %d idle clients: %d, %v after %s", len(idle), code, err, time.Since(start))
		}
	}
	if n := runtime.NumGoroutine() - before; n > 600 {
		t.Errorf("%d goroutines for 1000 idle clients", n)
	}
}

// A request in work is not thrown out for the sake of new ones.
func TestBusyConnectionsStay(t *testing.T) {
	release := make(chan struct{})
	var once sync.Once
	started := make(chan struct{})
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			once.Do(func() { close(started) })
			<-release
		}
		ok(w, r)
	})
	got := make(chan string, 1)
	go func() {
		_, _, text, err := get("GET", "http://"+addr+"/slow", nil)
		got <- fmt.Sprint(text, err)
	}()
	<-started
	for range 600 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if code, _, _, err := get("GET", "http://"+addr+"/", nil); err != nil || code != 200 {
		t.Errorf("a fast one: %d, %v", code, err)
	}
	close(release)
	if text := <-got; text != "ok<nil>" {
		t.Errorf("the slow one: %s", text)
	}
}

// Clients that ask for much and read nothing keep no one from an answer, not even others of
// their own address.
func TestUnreadAnswersBlockNoOthers(t *testing.T) {
	page := make([]byte, 16<<20)
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/status" {
			_, _ = w.Write(page)
			return
		}
		ok(w, r)
	})
	for range 300 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	time.Sleep(100 * time.Millisecond) // for the answers to fill their buffers
	answered := 0
	for range 20 {
		if code, _, _, err := get("GET", "http://"+addr+"/metrics", nil); err == nil && code == 200 {
			answered++
		}
	}
	if answered != 20 {
		t.Errorf("%d of 20 got /metrics beside 300 unread answers", answered)
	}
}

func TestServerBindsAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &deaf{}
		var failed []error
		s := &health.Server{
			Name: "health", Address: "192.0.2.1:10256", Handler: http.HandlerFunc(ok), Listen: w.Listen, Log: quiet,
			Failed: func(err error) { failed = append(failed, err) },
		}
		if err := s.Open(t.Context()); err != nil || s.Addr() != nil {
			t.Errorf("a soft failure: %v, %v", err, s.Addr())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if w.tries < 12 || w.tries > 14 {
			t.Errorf("%d attempts in a minute", w.tries)
		}
		if len(failed) != 1 || !strings.Contains(failed[0].Error(), "health address 192.0.2.1:10256: taken") {
			t.Errorf("reported %v", failed)
		}
	})
}

func TestServerHardFail(t *testing.T) {
	told := 0
	s := &health.Server{
		Name: "metrics", Address: "192.0.2.1:10249", Handler: http.HandlerFunc(ok), Listen: (&deaf{}).Listen, Log: quiet,
		HardFail: true, Failed: func(error) { told++ },
	}
	if err := s.Run(t.Context()); err == nil || told != 1 {
		t.Errorf("got %v, reported %d times", err, told)
	}
}

// deaf binds nothing.
type deaf struct{ tries int }

func (d *deaf) Listen(context.Context, string, string) (net.Listener, error) {
	d.tries++
	return nil, errors.New("taken")
}
