package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// A running proxy takes orders on the socket that is its lock: whoever can be
// asked is the one that works here. Only the system's administrator and the
// proxy's own user are heard. What merely looks is served over HTTP for all to
// see (core/health); what changes something is here.

// SwitchTo asks the proxy that runs here for another mode, and waits until it
// has done so. When ctx ends before, everything stays as it was.
func SwitchTo(ctx context.Context, to config.Mode) (done Switched, err error) {
	err = order(ctx, "/switch?to="+url.QueryEscape(string(to)), &done)
	return done, err
}

// order sends an order and reads the answer.
func order(ctx context.Context, path string, answer any) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialLock(ctx) }
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://tandem"+path, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("no tandem that runs here answers (one hears the administrator and its own user): %w", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("the answer of the running tandem: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return errors.New(string(body))
	}
	return json.Unmarshal(body, answer)
}

// acceptAgain is the pause after a connection that could not be accepted.
const acceptAgain = 100 * time.Millisecond

// control takes orders until ctx ends.
func (p *Proxy) control(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /switch", func(w http.ResponseWriter, r *http.Request) {
		done, err := p.Switch(r.Context(), config.Mode(r.URL.Query().Get("to")))
		reply(w, done, err)
	})
	p.orders = listen(p.lock, p.log)
	server := http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	// For good: one that is under way is waited for, and no other begins.
	defer func() { p.switching <- struct{}{} }()
	if err := server.Serve(p.orders); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func reply(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, err.Error()) // the client is gone; there is nobody to tell
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// orders is the lock as a listener that can be closed without giving the lock
// away. Strangers are not let in.
type orders struct {
	lock   net.Listener
	log    *slog.Logger
	conns  chan net.Conn
	closed chan struct{}
	ended  chan struct{} // closed when the lock is, and accept has seen it
	once   sync.Once
}

func listen(lock net.Listener, log *slog.Logger) *orders {
	o := &orders{lock: lock, log: log, conns: make(chan net.Conn), closed: make(chan struct{}), ended: make(chan struct{})}
	go o.accept() // until the lock is closed
	return o
}

func (o *orders) accept() {
	defer close(o.ended)
	failing, strangers := false, false // each is told when it begins
	for {
		c, err := o.lock.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors
			if !failing {
				o.log.Warn("orders cannot be taken", "error", err, "retry", acceptAgain)
			}
			failing = true
			time.Sleep(acceptAgain)
			continue
		}
		failing = false
		if !trusted(c) {
			if !strangers {
				o.log.Warn("orders of other users are not taken", "socket", o.lock.Addr().String())
			}
			strangers = true
			_ = c.Close()
			continue
		}
		select {
		case o.conns <- c:
		case <-o.closed:
			_ = c.Close()
		}
	}
}

// Accept implements net.Listener.
func (o *orders) Accept() (net.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The lock stays.
func (o *orders) Close() error {
	o.once.Do(func() { close(o.closed) })
	return nil
}

// Addr implements net.Listener.
func (o *orders) Addr() net.Addr { return o.lock.Addr() }
