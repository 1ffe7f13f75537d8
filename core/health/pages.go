// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Sources are where the pages come from. All are safe for concurrent use.
type Sources struct {
	Health  func() question.Health
	Status  func(context.Context) (func(question.Filter) any, error) // the state of now, of which documents have the Services of a filter
	Metrics http.Handler
	SLIs    http.Handler // /metrics/slis; nil for none
	Checked func(probe string, ok bool)
	Mode    func() string            // the mode that works, for /proxyMode
	Config  func() any               // a KubeProxyConfiguration with kind and version, for /configz; nil for none
	Flags   func() map[string]string // values in effect, for /flagz; nil for none
	Version string                   // of Tandem
	Release string                   // of the kube-proxy that it replaces, for /statusz
	UI      http.Handler             // /ui and what is below it, for this machine alone; nil for none
	Query   http.Handler             // what is below /query/, for tokens with the right; nil for none
	Profile bool                     // serve /debug/pprof/ and /debug/flags/v

	// Review admits clients of other machines and pods to /status, and all to /query/; nil admits none of them.
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
// this machine, and for those whose token an API server grants it to; /query/ is for the latter only, as
// root of this machine has the control socket; /configz, /flagz, profiles
// and the verbosity are for this machine alone. None of them is for web pages. The
// verbosity is set by a PUT; all else is read with GET or HEAD, without a body.
func Pages(s Sources) http.Handler {
	mux := &listed{ServeMux: http.NewServeMux()}
	for _, path := range []string{"/healthz", "/healthz/ping"} { // the check, and its one part
		mux.HandleFunc(path, s.componentCheck("healthz", question.Health.Healthy))
	}
	mux.HandleFunc("/livez", s.componentCheck("livez", question.Health.Alive))
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
	mux.Handle("/status", restrict("/status", s.Review, s.large(Status(s.Status))))
	if s.Query != nil {
		mux.Handle("/query/", granted("/query", s.Review, s.large(s.Query)))
	}
	if s.UI != nil {
		mux.Handle("/{$}", loopbackOnly(http.RedirectHandler("/ui", http.StatusFound).ServeHTTP))
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
	return readOnly(mux)
}

// readOnly lets only requests through that read and that carry nothing, and those
// that set the verbosity.
func readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
func (s Sources) componentCheck(name string, good func(question.Health) bool) http.HandlerFunc {
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

// Query is a filter in a request for the status.
func Query(only question.Filter) url.Values {
	q := url.Values{"state": only.States}
	for key, value := range map[string]string{"namespace": only.Namespace, "name": only.Name} {
		if value != "" {
			q.Set(key, value)
		}
	}
	return q
}

// readFilter reads the filter of a request for the status: namespace, name and, more than once
// or not, state. Others are ignored, as on other pages.
func readFilter(r *http.Request) question.Filter {
	q := r.URL.Query()
	return question.Filter{Namespace: q.Get("namespace"), Name: q.Get("name"), States: q["state"]}
}

// statusAge is how old a status may be. Making one takes the engine's time, so
// that frequent requests share one.
const statusAge = 200 * time.Millisecond

// maxDocuments bounds the answers that are being written, each of which holds a document: one
// that its client does not read may be an older one than the next.
const maxDocuments = 16

// Status serves status documents in the form that is requested. All of a moment show one state, and
// share the whole of it as text; the text of a part is made for each request. One is made at a
// time: no request waits for its turn longer than its client does.
func Status(of func(context.Context) (func(question.Filter) any, error)) http.Handler {
	state := Shared(of, statusAge)
	making, writing := make(sleep.Turn, 1), make(sleep.Turn, maxDocuments)
	text := func(ctx context.Context, only question.Filter, kind string) (parts [][]byte, err error) {
		if err := making.Take(ctx); err != nil {
			return nil, err
		}
		defer making.Give()
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
		whole[kind] = Shared(func(ctx context.Context) ([][]byte, error) { return text(ctx, question.Filter{}, kind) }, statusAge)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if writing.Take(r.Context()) != nil {
			return
		}
		defer writing.Give()
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
func rejectLocalRebinding(h http.Handler) http.Handler { return byPlace(RejectRebinding(h), h) }

// byPlace has one page for clients on loopback addresses, and another for others.
func byPlace(local, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fromLoopback(r) {
			local.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
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
	return RejectRebinding(byPlace(h, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "allowed from loopback addresses of this node only", http.StatusForbidden)
	})))
}

// The z-pages of Kubernetes' components (KEP-4827, KEP-4828): /flagz and /statusz, as
// text, and as JSON for requests with a version of it. And /debug/flags/v.

// zHeader begins a page in text.
const zHeader = "\nkube-proxy %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// zVersions are the versions of both pages that kube-proxy 1.37 has.
func zVersions() []string { return []string{"v1alpha1", "v1beta1"} }

// zPage answers with text, or with a structured document where Accept asks for
// application/json;g=config.k8s.io;v=VERSION;as=KIND.
func zPage(kind string, text func() string, fields func() map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		accept := r.Header.Get("Accept")
		for part := range strings.SplitSeq(accept, ",") {
			media, params, err := mime.ParseMediaType(part)
			if err != nil {
				continue
			}
			switch {
			case media == "application/json" && params["as"] == kind && params["g"] == "config.k8s.io" && slices.Contains(zVersions(), params["v"]):
				doc := map[string]any{
					"kind": kind, "apiVersion": "config.k8s.io/" + params["v"], "metadata": map[string]any{"name": "kube-proxy"},
				}
				maps.Copy(doc, fields())
				write(w, http.StatusOK, doc)
				return
			case media == "text/plain", media == "text/*", media == "*/*":
				writeBytes(w, http.StatusOK, plainText, []byte(text()))
				return
			}
		}
		if strings.TrimSpace(accept) == "" {
			writeBytes(w, http.StatusOK, plainText, []byte(text()))
			return
		}
		http.Error(w, "only text/plain and application/json;g=config.k8s.io;v=v1beta1;as="+kind+" are served", http.StatusNotAcceptable)
	}
}

// flagz shows the flags with the values in effect.
func (s Sources) flagz() http.HandlerFunc {
	return zPage("Flagz", func() string {
		var b strings.Builder
		fmt.Fprintf(&b, zHeader, "flagz")
		flags := s.Flags()
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			fmt.Fprintf(&b, "%s=%s\n", name, printable.Text(flags[name]))
		}
		return b.String()
	}, func() map[string]any { return map[string]any{"flags": s.Flags()} })
}

// statusz shows version, uptime and the other pages. The binary version is that of the
// kube-proxy that is replaced.
func (s Sources) statusz(started time.Time, paths func() []string) http.HandlerFunc {
	return zPage("Statusz", func() string {
		up := int64(time.Since(started).Seconds())
		return fmt.Sprintf(zHeader, "statusz") + fmt.Sprintf(
			"\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\nTandem version: %s\n\nPaths: %s\n",
			started.Format(time.UnixDate), up/3600, up/60%60, up%60, runtime.Version(), s.Release, s.Version, strings.Join(paths(), " "))
	}, func() map[string]any {
		return map[string]any{
			"startTime": started.UTC().Format(time.RFC3339), "uptimeSeconds": int64(time.Since(started).Seconds()),
			"goVersion": runtime.Version(), "binaryVersion": s.Release, "paths": paths(),
		}
	})
}

const verbosityPath = "/debug/flags/v"

// setVerbosity changes --v while the proxy runs, by a PUT of a number.
func (s Sources) setVerbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		http.Error(w, "unsupported http method", http.StatusNotAcceptable) // kube-proxy's answer
		return
	}
	const longest = 10
	body, err := io.ReadAll(io.LimitReader(r.Body, longest+1))
	level, bad := strconv.ParseUint(string(body), 10, 31)
	if err != nil || bad != nil {
		http.Error(w, "the body must be a verbosity such as 4", http.StatusBadRequest)
		return
	}
	s.Verbosity(int(level))
	writeBytes(w, http.StatusOK, plainText, fmt.Appendf(nil, "successfully set klog.logging.verbosity to %d\n", level))
}

// listed are the first parts of paths, as kube-proxy's statusz has them.
type listed struct {
	*http.ServeMux
	paths []string
}

// Handle adds a page and lists it.
func (l *listed) Handle(path string, h http.Handler) {
	l.ServeMux.Handle(path, h)
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if page := "/" + first; !slices.Contains(l.paths, page) {
		l.paths = append(l.paths, page)
		slices.Sort(l.paths)
	}
}

// HandleFunc is Handle for a function.
func (l *listed) HandleFunc(path string, h http.HandlerFunc) { l.Handle(path, h) }

// Shared returns a function whose callers share the result of get for some time, and
// get it one at a time. A caller waits for its turn no longer than its context lasts:
// an engine that is busy for minutes must not collect clients until none gets an
// answer. Afterwards the result, which may be tens of megabytes, is dropped. Errors
// are not shared.
func Shared[T any](get func(context.Context) (T, error), age time.Duration) func(context.Context) (T, error) {
	s := shared[T]{turn: make(sleep.Turn, 1)}
	return func(ctx context.Context) (result T, err error) {
		if err := s.turn.Take(ctx); err != nil {
			return result, err
		}
		defer s.turn.Give()
		if last := s.latest(); last != nil {
			return *last, nil
		}
		if result, err = get(ctx); err == nil {
			s.keep(&result)
			time.AfterFunc(age, func() { s.keep(nil) })
		}
		return result, err
	}
}

// shared is the latest result, nil if it is too old.
type shared[T any] struct {
	turn sleep.Turn // of get

	mu   sync.Mutex
	last *T
}

func (s *shared[T]) latest() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *shared[T]) keep(result *T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = result
}
