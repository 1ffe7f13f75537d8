// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/wire"
)

// The control socket is next to the lock; only the administrator and the proxy's
// own user can open it: see Held. The status is served over HTTP for all
// (core/health); what changes something is here, and what asks more (questions.go).

// switchFunc changes the mode, reports each phase before it begins, and returns
// when that is done.
type switchFunc func(ctx context.Context, to config.Mode, phase func(string)) (Switched, error)

// phaseHeader names the phase of a request that takes a while, in an informational
// response (102 Processing) before the final one.
const phaseHeader = "Tandem-Phase"

// SwitchTo asks the proxy that runs here for another mode, and waits until it
// has done so. Phase is called with each phase. When ctx ends before, everything
// stays unchanged.
func SwitchTo(ctx context.Context, to config.Mode, phase func(string)) (done Switched, err error) {
	err = call(withPhases(ctx, phase), "/switch?to="+url.QueryEscape(string(to)), nil, &done)
	return done, err
}

// withPhases reports the phases of the requests that are made with a context.
func withPhases(ctx context.Context, phase func(string)) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		phase(h.Get(phaseHeader))
		return nil
	}})
}

// call sends a request to the control socket and reads the answer.
func call(ctx context.Context, path string, request []byte, into any) error {
	res, err := open(ctx, path, request)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return wire.Read(res.Header.Get("Content-Type"), res.Body, into)
}

// carrierKey is the key of what Through has put into a context.
type carrierKey struct{}

// Through returns a context whose requests a carrier takes to the control socket of another proxy: one of another
// node, or of another network of this one. They are to http://tandem, with the paths and methods that the control
// socket has.
func Through(ctx context.Context, carrier http.RoundTripper) context.Context {
	return context.WithValue(ctx, carrierKey{}, carrier)
}

// Inside returns a context whose requests go to the proxy of another network: enter runs
// a function on a thread there.
func Inside(ctx context.Context, enter func(func() error) error) context.Context {
	return Through(ctx, dialer(func(ctx context.Context) (conn net.Conn, err error) {
		err = enter(func() error {
			conn, err = thisSystem().dialControl(ctx)
			return err
		})
		return conn, err
	}))
}

// DialControl connects to the control socket of the proxy that runs here.
func DialControl(ctx context.Context) (net.Conn, error) {
	conn, err := thisSystem().dialControl(ctx)
	if err != nil {
		return nil, unreachable(err)
	}
	return conn, nil
}

// dialer is a carrier to a control socket of this machine.
type dialer func(context.Context) (net.Conn, error)

// RoundTrip implements http.RoundTripper, over a connection for each request.
func (d dialer) RoundTrip(req *http.Request) (*http.Response, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return d(ctx) }
	res, err := (&http.Transport{DialContext: dial, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return nil, unreachable(err)
	}
	return res, nil
}

// controlURL is where requests to the control socket go.
const controlURL = "http://tandem"

// open sends a request to the control socket. The caller reads and closes the body of
// the answer.
func open(ctx context.Context, path string, request []byte) (*http.Response, error) {
	carrier, elsewhere := ctx.Value(carrierKey{}).(http.RoundTripper)
	if !elsewhere {
		carrier = dialer(thisSystem().dialControl)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, controlURL+path, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", wire.Accept)
	res, err := carrier.RoundTrip(req)
	if err != nil {
		return nil, cmp.Or(ctx.Err(), err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return nil, question.Refusal(cmp.Or(strings.TrimSpace(string(text)), res.Status))
	}
	return res, nil
}

// errNotRunning is why the control socket does not answer, and what to do.
var errNotRunning = errors.New("no tandem runs on this node, in this network namespace: start it with 'tandem start' where it is installed as a service, else with 'tandem run'")

// unreachable says why the control socket did not answer: without a proxy there is no socket,
// or one that has no listener any more.
func unreachable(err error) error {
	gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
	if gone && !errors.Is(err, fs.ErrPermission) {
		return errNotRunning
	}
	return fmt.Errorf("cannot reach the control socket of a running tandem (requires its user or root): %w", err)
}

// route is one more request that the control socket answers.
type route struct {
	pattern string // of http.ServeMux
	answer  http.HandlerFunc
}

// The pauses before the control socket is opened again.
const (
	firstReopen = time.Second
	lastReopen  = time.Minute
)

// serveControl serves the control socket until ctx ends. Without a socket everything else
// works: one that cannot be opened, or fails, is opened again.
func serveControl(ctx context.Context, lock Held, log *slog.Logger, handler http.Handler) error {
	server := http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	pause := firstReopen
	for failing := false; ; failing = true {
		begin := time.Now()
		err := listenAndServe(&server, lock)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(begin) > lastReopen {
			failing, pause = false, firstReopen // it has worked
		}
		if !failing {
			log.Warn("control socket failed; switch, queries, history and snapshot are unavailable; retrying", "err", err)
		}
		if !sleep.For(ctx, pause) {
			return nil
		}
		pause = sleep.Longer(pause, firstReopen, lastReopen)
	}
}

// listenAndServe serves the control socket until it fails or the server is closed.
func listenAndServe(server *http.Server, lock Held) error {
	l, err := lock.Listen()
	if err != nil {
		return err
	}
	return server.Serve(l)
}

// controlHandler answers the requests of the control socket.
func controlHandler(switchTo switchFunc, more ...route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range more {
		mux.HandleFunc(r.pattern, r.answer)
	}
	mux.HandleFunc("POST /switch", func(w http.ResponseWriter, r *http.Request) {
		to := config.Mode(r.URL.Query().Get("to"))
		if _, err := Find(to); err != nil || to == config.Auto {
			reply(w, r, nil, fmt.Errorf("no mode %.40q", to))
			return
		}
		done, err := switchTo(r.Context(), to, func(phase string) {
			w.Header().Set(phaseHeader, phase)
			w.WriteHeader(http.StatusProcessing)
			w.Header().Del(phaseHeader)
		})
		reply(w, r, done, err)
	})
	return mux
}

// reply answers a request in the form that it asks for.
func reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	kind := wire.Type(r.Header.Get("Accept"))
	var text []byte
	if err == nil {
		text, err = wire.Marshal(kind, v)
	}
	send(bounded{w}, kind, text, err)
}

// send sends an answer, or the error in its place.
func send(w http.ResponseWriter, kind string, text []byte, err error) {
	if err != nil {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, err.Error()) // fails only when the client has closed
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text)
}

// answerWait is how long a client may take to read a part of its answer: a pager may have
// stopped it. After that its connection is closed.
const answerWait = 5 * time.Minute

// bounded is a client that must read.
type bounded struct{ http.ResponseWriter }

func (w bounded) Write(text []byte) (int, error) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(answerWait)) // every connection has them
	return w.ResponseWriter.Write(text)
}
