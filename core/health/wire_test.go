// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

// wire is a network of listeners: what binds any address gets one of its own on
// loopback, and an address can be bound once.
type wire struct {
	mu    sync.Mutex
	bound map[string]*bound
	fault map[string]error // addresses that cannot be bound
	deaf  map[string]error // addresses on which nothing can be accepted
	tries int
	open  func(context.Context) (net.Listener, error)
}

type bound struct {
	net.Listener
	leave  func()
	broken func() error
}

// Accept fails, once something connects, where the address was broken.
func (b *bound) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if broken := b.broken(); err == nil && broken != nil {
		_ = c.Close()
		return nil, broken
	}
	return c, err
}

func (b *bound) Close() error {
	b.leave()
	return b.Listener.Close()
}

func newWire() *wire {
	return &wire{bound: map[string]*bound{}, fault: map[string]error{}, deaf: map[string]error{}, open: func(ctx context.Context) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	}}
}

// silent is a listener to which nobody connects. It needs no system, so that synctest
// knows that it waits.
type silent struct {
	closed chan struct{}
	close  func()
}

func newSilent() *silent {
	closed := make(chan struct{})
	return &silent{closed, sync.OnceFunc(func() { close(closed) })}
}

func (s *silent) Accept() (net.Conn, error) { <-s.closed; return nil, net.ErrClosed }
func (s *silent) Close() error              { s.close(); return nil }
func (s *silent) Addr() net.Addr            { return &net.TCPAddr{} }

func (w *wire) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tries++
	at := network + " " + address
	if err := w.fault[at]; err != nil {
		return nil, err
	}
	if w.bound[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: syscall.EADDRINUSE}
	}
	l, err := w.open(ctx)
	if err != nil {
		return nil, err
	}
	b := &bound{Listener: l}
	b.leave = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.bound[at] == b {
			delete(w.bound, at)
		}
	}
	b.broken = func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.deaf[at]
	}
	w.bound[at] = b
	return b, nil
}

func (w *wire) spoil(at string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault[at] = err
}

// deafen has listeners of an address fail with an error, nil for none.
func (w *wire) deafen(at string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf[at] = err
}

// addr returns where something that is bound can be reached, "" when it is not.
func (w *wire) addr(at string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b := w.bound[at]; b != nil {
		return b.Addr().String()
	}
	return ""
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.bound)
}

// eventually waits for something that other goroutines bring about.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in a minute: %s", what)
		}
	}
}

// get asks once, on a connection of its own.
func get(method, url string, body io.Reader) (code int, header http.Header, text string, err error) {
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return 0, nil, "", err
	}
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(b), err
}

// run runs something until the test ends.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("still running")
		}
	})
}
