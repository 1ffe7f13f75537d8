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
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// A running proxy takes orders on its control socket, which lies beside its lock
// and which only the system's administrator and the proxy's own user can open:
// see Held. What merely looks is served over HTTP for all to see (core/health);
// what changes something is here.

// SwitchTo asks the proxy that runs here for another mode, and waits until it
// has done so. When ctx ends before, everything stays as it was.
func SwitchTo(ctx context.Context, to config.Mode) (done Switched, err error) {
	err = order(ctx, "/switch?to="+url.QueryEscape(string(to)), &done)
	return done, err
}

// order sends an order and reads the answer.
func order(ctx context.Context, path string, answer any) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dialControl(ctx) }
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
		return fmt.Errorf("cannot reach the control socket of a running tandem (requires its user, root most often): %w", err)
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

// control takes orders until ctx ends. Without a control socket nothing else is
// lost.
func (p *Proxy) control(ctx context.Context) error {
	// For good: one that is under way is waited for, and no other begins.
	defer func() { p.switching <- struct{}{} }()
	l, err := p.lock.Listen()
	if err != nil {
		p.log.Warn("no control socket: modes can be switched by the configuration only", "err", err)
		<-ctx.Done()
		return nil
	}
	server := http.Server{
		Handler:           orders(p.Switch),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// orders are what the control socket understands.
func orders(switchTo func(context.Context, config.Mode) (Switched, error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /switch", func(w http.ResponseWriter, r *http.Request) {
		to := config.Mode(r.URL.Query().Get("to"))
		if _, err := Find(to); err != nil || to == config.Auto {
			reply(w, nil, fmt.Errorf("no mode %.40q", to))
			return
		}
		done, err := switchTo(r.Context(), to)
		reply(w, done, err)
	})
	return mux
}

func reply(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, err.Error()) // the client is gone; there is nobody to tell
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}
