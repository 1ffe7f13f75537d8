// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Sources are where the pages come from. All are safe for concurrent use.
type Sources struct {
	Health  func() status.Health
	Status  func(context.Context) (func(status.Filter) any, error) // the state of now, of which documents have the Services of a filter
	Metrics http.Handler
	SLIs    http.Handler // /metrics/slis; nil for none
	Checked func(probe string, ok bool)
	Mode    func() string            // the mode that works, for /proxyMode
	Config  func() any               // a KubeProxyConfiguration with kind and version, for /configz; nil for none
	Flags   func() map[string]string // values in effect, for /flagz; nil for none
	Version string                   // of Tandem
	Release string                   // of the kube-proxy that it replaces, for /statusz
	UI      http.Handler             // /ui and what is below it, for this machine alone; nil for none
	Profile bool                     // serve /debug/pprof/ and /debug/flags/v

	// Review admits clients of other machines and pods to /status; nil admits none of them.
	Review Review

	// Large wraps the handlers of large answers: the status and the UI; nil for none.
	Large func(http.Handler) http.Handler

	// Verbosity sets --v of the running proxy, for /debug/flags/v; nil for none.
	Verbosity func(int)
}

// configGroup is the key of kube-proxy's own part of /configz.
const configGroup = "kubeproxy.config.k8s.io"

// Pages answers on the metrics address: kube-proxy's paths, and /status. Unlike
// there /healthz can fail, with the reasons. /metrics and /statusz are for all; /status is for
// this machine, and for those whose token an API server grants it to; /configz, /flagz, profiles
// and the verbosity are for this machine alone. None of them is for web pages.
func Pages(s Sources) http.Handler {
	mux := &listed{ServeMux: http.NewServeMux()}
	mux.HandleFunc("/healthz", s.componentCheck("healthz", status.Health.Healthy))
	mux.HandleFunc("/livez", s.componentCheck("livez", status.Health.Alive))
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		writeBytes(w, http.StatusOK, plainText, []byte(s.Mode()))
	})
	mux.Handle("/metrics", rejectLocalRebinding(s.Metrics))
	if s.SLIs != nil {
		mux.Handle("/metrics/slis", rejectLocalRebinding(s.SLIs))
	}
	if s.Config != nil {
		mux.Handle("/configz", loopbackOnly(func(w http.ResponseWriter, _ *http.Request) {
			write(w, http.StatusOK, map[string]any{configGroup: s.Config()})
		}))
	}
	if s.Flags != nil {
		mux.Handle("/flagz", loopbackOnly(s.flagz()))
	}
	mux.Handle("/statusz", rejectLocalRebinding(s.statusz(time.Now(), func() []string { return mux.paths })))
	mux.Handle("/status", restrict("/status", s.Review, s.large(document(s.Status))))
	if s.UI != nil {
		mux.Handle("/ui", s.large(loopbackOnly(s.UI.ServeHTTP)))
		mux.Handle("/ui/", s.large(loopbackOnly(s.UI.ServeHTTP)))
	}
	if s.Profile {
		mux.Handle("/debug/pprof/", loopbackOnly(pprof.Index))
		mux.Handle("/debug/pprof/profile", loopbackOnly(pprof.Profile))
		mux.Handle("/debug/pprof/symbol", loopbackOnly(pprof.Symbol))
		mux.Handle("/debug/pprof/cmdline", loopbackOnly(pprof.Cmdline))
		mux.Handle("/debug/pprof/trace", loopbackOnly(pprof.Trace))
	}
	if s.Profile && s.Verbosity != nil {
		mux.Handle(verbosityPath, loopbackOnly(s.setVerbosity))
	}
	return mux
}

// large is the handler of a large answer.
func (s Sources) large(h http.Handler) http.Handler {
	if s.Large == nil {
		return h
	}
	return s.Large(h)
}

const plainText = "text/plain; charset=utf-8"

// componentCheck answers as the health checks of Kubernetes' components do: "ok", or 500
// with what failed; with ?verbose also what did not. Its one check is called
// ping, as kube-proxy's is.
func (s Sources) componentCheck(name string, good func(status.Health) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h := s.Health()
		ok := good(h)
		if s.Checked != nil {
			s.Checked(name, ok)
		}
		_, verbose := r.URL.Query()["verbose"]
		switch {
		case !ok:
			text := fmt.Sprintf("[-]ping failed: %s\n%s check failed\n", printable.Text(strings.Join(h.Reasons, "; ")), name)
			writeBytes(w, http.StatusInternalServerError, plainText, []byte(text))
		case verbose:
			writeBytes(w, http.StatusOK, plainText, fmt.Appendf(nil, "[+]ping ok\n%s check passed\n", name))
		default:
			writeBytes(w, http.StatusOK, plainText, []byte("ok"))
		}
	}
}

// readFilter reads the filter of a request for the status: namespace, name and, more than once
// or not, state. Others are ignored, as on other pages.
func readFilter(r *http.Request) status.Filter {
	q := r.URL.Query()
	return status.Filter{Namespace: q.Get("namespace"), Name: q.Get("name"), States: q["state"]}
}

// statusAge is how old a status may be. Making one takes the engine's time, so
// that frequent requests share one.
const statusAge = 200 * time.Millisecond

// maxDocuments bounds the answers that are being written, each of which holds a document: one
// that its client does not read may be an older one than the next.
const maxDocuments = 16

// document serves documents in the form that is requested. All of a moment show one state, and
// share the whole of it as text; the text of a part is made for each request. One is made at a
// time: no request waits for its turn longer than its client does.
func document(of func(context.Context) (func(status.Filter) any, error)) http.Handler {
	state := Shared(of, statusAge)
	turn, writing := make(chan struct{}, 1), make(chan struct{}, maxDocuments)
	text := func(ctx context.Context, only status.Filter, kind string) (parts [][]byte, err error) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		now, err := state(ctx)
		if err != nil {
			return nil, err
		}
		last, err := wire.Encode(kind, now(only), func(part []byte) error {
			parts = append(parts, slices.Clone(part))
			return nil
		})
		return append(parts, last), err
	}
	whole := map[string]func(context.Context) ([][]byte, error){}
	for _, kind := range []string{wire.JSON, wire.CBOR} {
		whole[kind] = Shared(func(ctx context.Context) ([][]byte, error) { return text(ctx, status.Filter{}, kind) }, statusAge)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case writing <- struct{}{}:
			defer func() { <-writing }()
		case <-r.Context().Done():
			return
		}
		var doc [][]byte
		var err error
		kind := wire.Type(r.Header.Get("Accept"))
		if only := readFilter(r); only.All() {
			doc, err = whole[kind](r.Context())
		} else {
			doc, err = text(r.Context(), only, kind)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		writeBytes(w, http.StatusOK, kind, doc...)
	})
}

// RejectRebinding refuses requests that a browser was tricked into sending: a name that
// is not this machine's in the Host header means that another DNS name led
// here (DNS rebinding).
func RejectRebinding(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			http.Error(w, "Host header must be an IP address or localhost", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// rejectLocalRebinding is RejectRebinding for clients on loopback addresses, where a
// browser would come from. Others may know this machine by any name, and the API server's
// proxy of pods keeps the Host header of its own client.
func rejectLocalRebinding(h http.Handler) http.Handler {
	strict := RejectRebinding(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fromLoopback(r) {
			strict.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// fromLoopback reports whether the client is on this machine, by its address.
func fromLoopback(r *http.Request) bool {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && client.Addr().Unmap().IsLoopback()
}

// loopbackOnly refuses requests from other machines and pods, too: pages that show the
// program's memory or cost CPU time are for users of this machine. The metrics
// address may be open to all of the cluster.
func loopbackOnly(h http.HandlerFunc) http.Handler {
	return RejectRebinding(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !fromLoopback(r) {
			http.Error(w, "allowed from loopback addresses of this node only", http.StatusForbidden)
			return
		}
		h(w, r)
	}))
}
