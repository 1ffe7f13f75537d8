// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// The control socket lies beside the lock; only the administrator and the proxy's
// own user can open it: see Held. The status is served over HTTP for all
// (core/health); what changes something is here, and what asks more (query.go).

// switchFunc changes the mode, and returns when that is done.
type switchFunc func(context.Context, config.Mode) (Switched, error)

// SwitchTo asks the proxy that runs here for another mode, and waits until it
// has done so. When ctx ends before, everything stays as it was.
func SwitchTo(ctx context.Context, to config.Mode) (done Switched, err error) {
	err = post(ctx, "/switch?to="+url.QueryEscape(string(to)), nil, &done)
	return done, err
}

// maxAnswer bounds an answer: a list of 50,000 Services needs some 40 MB.
const maxAnswer = 256 << 20

// post sends a request to the control socket and reads the answer.
func post(ctx context.Context, path string, request []byte, answer any) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return thisSystem().dialControl(ctx) }
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://tandem"+path, bytes.NewReader(request))
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("cannot reach the control socket of a running tandem (requires its user or root): %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		return errors.New(strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(answer); err != nil {
		return fmt.Errorf("read the answer of the running tandem: %w", err)
	}
	return nil
}

// serveControl serves the control socket until ctx ends. Without a socket all else
// works.
func serveControl(ctx context.Context, lock Held, switchTo switchFunc, ask askFunc, log *slog.Logger) error {
	l, err := lock.Listen()
	if err != nil {
		log.Warn("opening the control socket failed; tandem switch and queries are unavailable", "err", err)
		<-ctx.Done()
		return nil
	}
	server := http.Server{
		Handler:           controlHandler(switchTo, ask),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// controlHandler answers the requests of the control socket.
func controlHandler(switchTo switchFunc, ask askFunc) http.Handler {
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
	mux.HandleFunc("POST /query/{name}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			reply(w, nil, err)
			return
		}
		answer, err := ask(r.Context(), r.PathValue("name"), body)
		reply(w, answer, err)
	})
	return mux
}

func reply(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, err.Error()) // fails only when the client is gone
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}
