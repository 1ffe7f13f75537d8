// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// Whatever is sent to the control socket, only a mode that there is is switched
// to, and only by POST /switch.
func FuzzControl(f *testing.F) {
	f.Add("POST /switch?to=iptables HTTP/1.1\r\nHost: tandem\r\n\r\n")
	f.Add("POST /switch?to=auto HTTP/1.1\r\nHost: tandem\r\n\r\n")
	f.Add("GET /switch?to=nftables HTTP/1.1\r\nHost: tandem\r\n\r\n")
	f.Add("POST //switch?to=%1b[2J HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")
	names := Names()[1:]
	f.Fuzz(func(t *testing.T, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		switched := false
		h := controlHandler(func(_ context.Context, to config.Mode, _ func(string)) (Switched, error) {
			switched = true
			if r.Method != http.MethodPost || !slices.Contains(names, string(to)) {
				t.Errorf("%s %s switches to %q", r.Method, r.URL, to)
			}
			return Switched{To: to}, nil
		})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if (w.Code == http.StatusOK) != switched {
			t.Errorf("%s %s: %d, switched %t", r.Method, r.URL, w.Code, switched)
		}
	})
}

func TestControl(t *testing.T) {
	for _, c := range []struct {
		method, to string
		code       int
	}{
		{"POST", Names()[1], 200},
		{"POST", "auto", 409},
		{"POST", "", 409},
		{"POST", strings.Repeat("\x1b[2J", 1000), 409},
		{"GET", Names()[1], 405},
		{"PUT", Names()[1], 405},
	} {
		w := httptest.NewRecorder()
		controlHandler(func(context.Context, config.Mode, func(string)) (Switched, error) { return Switched{}, nil }).
			ServeHTTP(w, httptest.NewRequest(c.method, "/switch?to="+url.QueryEscape(c.to), nil))
		if w.Code != c.code || w.Body.Len() > 512 || strings.Contains(w.Body.String(), "\x1b") {
			t.Errorf("%s %.20q: %d %s", c.method, c.to, w.Code, w.Body)
		}
	}
}

// brokenLock is a lock whose first socket fails when somebody connects.
type brokenLock struct {
	noLock
	opened chan net.Listener
	err    error
}

type brokenListener struct {
	net.Listener
	err error
}

func (l brokenListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = errors.Join(l.err, c.Close())
	}
	return nil, err
}

func (l *brokenLock) Listen() (net.Listener, error) {
	s, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l.opened <- s
	if first := l.err; first != nil {
		l.err = nil
		return brokenListener{s, first}, nil
	}
	return s, nil
}

// A control socket that fails ends nothing, and is opened again.
func TestControlSocketIsOpenedAgain(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	lock := &brokenLock{opened: make(chan net.Listener, 2), err: syscall.ENOBUFS}
	var said strings.Builder
	log := slog.New(slog.NewTextHandler(&said, nil))
	done := make(chan error, 1)
	go func() { done <- serveControl(ctx, lock, log, http.NotFoundHandler()) }()
	dial := func() net.Conn {
		select {
		case l := <-lock.opened:
			c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			return c
		case err := <-done:
			t.Fatalf("serving has ended: %v", err)
		case <-time.After(time.Minute):
			t.Fatal("no socket for a minute")
		}
		return nil
	}
	defer dial().Close()
	c := dial()
	defer c.Close()
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.0 404") {
		t.Errorf("the second socket answers %q, %v", answer, err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if strings.Count(said.String(), "control socket failed") != 1 || !strings.Contains(said.String(), syscall.ENOBUFS.Error()) {
		t.Errorf("logged %q", said.String())
	}
}

// A client that waits for a switch gets each phase, before the answer.
func TestSwitchReportsItsPhases(t *testing.T) {
	phases := []string{"opening", "programming", "removing"}
	s := httptest.NewServer(controlHandler(func(_ context.Context, to config.Mode, phase func(string)) (Switched, error) {
		for _, p := range phases {
			phase(p)
		}
		return Switched{To: to}, nil
	}))
	defer s.Close()
	var got []string
	ctx := withPhases(t.Context(), func(p string) { got = append(got, p) })
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/switch?to="+Names()[1], nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.Client().Do(req)
	if err != nil || res.StatusCode != http.StatusOK || !slices.Equal(got, phases) {
		t.Errorf("%v, %q", err, got)
	}
	_ = res.Body.Close()
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A question that is too large is rejected by the limit's name.
func TestAQuestionIsBounded(t *testing.T) {
	w := httptest.NewRecorder()
	new(Proxy).queryRoute().answer(w, httptest.NewRequest(http.MethodPost, "/query/preview", zeros{}))
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "request larger than 64 MiB") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
