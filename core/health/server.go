// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/tandem-proxy/tandem/core/sleep"
)

// The limits that keep slow or hostile clients from harming others.
const (
	headerTimeout = 5 * time.Second // for a request to arrive
	answerTimeout = 30 * time.Second
	stallTimeout  = 5 * time.Second // for a client to read some of an answer
	writeStep     = 64 << 10        // bytes of it
	idleTimeout   = 2 * time.Minute // between two requests of a connection
	maxHeader     = 16 << 10        // bytes; net/http adds 4 KiB of slack
	maxConns      = 256             // of one server
)

// bindEvery is the pause between attempts to bind an address, as in kube-proxy.
const bindEvery = 5 * time.Second

// Listen opens a listening socket, as net.ListenConfig.Listen does. It decides
// in which network namespace.
type Listen func(ctx context.Context, network, address string) (net.Listener, error)

// Server serves one address for as long as a context lasts.
type Server struct {
	Name    string // for logs, such as "health"
	Address string // IP:port
	Handler http.Handler
	Listen  Listen // nil for the usual

	// HardFail makes an address that cannot be bound an error; otherwise it is
	// tried again every 5 s.
	HardFail bool
	// Failed, unless nil, is called when the address cannot be bound: once, until it
	// could be.
	Failed func(error)
	Log    *slog.Logger

	bound    net.Listener
	reported bool
}

// Open binds the address, so that its caller knows at once that it is in use, and
// Run then serves what was bound. Without HardFail there is no error: Run tries
// on.
func (s *Server) Open(ctx context.Context) error {
	listen := s.Listen
	if listen == nil {
		listen = new(net.ListenConfig).Listen
	}
	l, err := listen(ctx, "tcp", s.Address)
	if err == nil {
		s.bound, s.reported = l, false
		return nil
	}
	err = fmt.Errorf("%s address %s: %w", s.Name, s.Address, err)
	if !s.reported && s.Failed != nil {
		s.Failed(err)
	}
	if s.HardFail {
		return err
	}
	if !s.reported {
		s.Log.Error("listen failed; retrying", "server", s.Name, "address", s.Address, "err", err, "every", bindEvery)
	}
	s.reported = true
	return nil
}

// Addr returns the address that is bound, nil when none is.
func (s *Server) Addr() net.Addr {
	if s.bound == nil {
		return nil
	}
	return s.bound.Addr()
}

// Close closes what Open bound and Run does not serve.
func (s *Server) Close() error {
	if s.bound == nil {
		return nil
	}
	if err := s.bound.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if s.bound == nil {
			if err := s.Open(ctx); err != nil {
				return err
			}
		}
		if s.bound != nil {
			s.serve(ctx)
		}
		sleep.For(ctx, bindEvery)
	}
	return nil
}

func (s *Server) serve(ctx context.Context) {
	server := newServer(s.Handler, s.Log)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err := server.Serve(limitedListener{Listener: s.bound, limiter: &connLimiter{max: maxConns}})
	_ = server.Close() // with all its connections
	s.bound = nil
	if ctx.Err() == nil {
		s.Log.Error("server stopped; restarting", "server", s.Name, "err", err)
	}
}

// newServer returns a server with our limits.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           readOnly(h),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ConnContext:    withConn,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// readOnly lets only requests through that read and that carry nothing, and those
// that set the verbosity.
func readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connOf(r); c != nil {
			c.answering(true)
			defer c.answering(false)
		}
		switch {
		case r.Method == http.MethodPut && r.URL.Path == verbosityPath:
			w.Header().Set("Connection", "close") // what its page does not read is not read
			h.ServeHTTP(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			w.Header().Set("Connection", "close")
			http.Error(w, "only GET and HEAD are allowed", http.StatusMethodNotAllowed)
		case r.ContentLength != 0:
			w.Header().Set("Connection", "close") // its body is not read
			http.Error(w, "request body not allowed", http.StatusRequestEntityTooLarge)
		default:
			h.ServeHTTP(w, r)
		}
	})
}
