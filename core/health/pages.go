package health

import (
	"context"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"

	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/status"
)

// Sources are where the pages come from. All are safe for concurrent use.
type Sources struct {
	Health  func() status.Health
	Status  func(context.Context) (any, error) // the status document
	Metrics http.Handler
	SLIs    http.Handler // /metrics/slis; nil for none
	Checked func(probe string, ok bool)
	Mode    func() string // the mode that works, for /proxyMode
	Config  func() any    // a KubeProxyConfiguration with kind and version, for /configz; nil for none
	Profile bool          // serve /debug/pprof/
}

// configGroup is the key of kube-proxy's own part of /configz.
const configGroup = "kubeproxy.config.k8s.io"

// Pages answers on the metrics address: kube-proxy's paths, and /status. Unlike
// there /healthz can fail, with the reasons, and nothing can be written:
// /debug/flags/v is not there. /status is for whoever reads metrics, /configz and
// profiles are for this machine alone, and none of them for web pages.
func Pages(s Sources) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", s.plain("healthz", status.Health.Healthy))
	mux.HandleFunc("/livez", s.plain("livez", status.Health.Alive))
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		writeBytes(w, http.StatusOK, plainText, []byte(s.Mode()))
	})
	mux.Handle("/metrics", s.Metrics)
	if s.SLIs != nil {
		mux.Handle("/metrics/slis", s.SLIs)
	}
	if s.Config != nil {
		mux.Handle("/configz", fromHere(func(w http.ResponseWriter, _ *http.Request) {
			write(w, http.StatusOK, map[string]any{configGroup: s.Config()})
		}))
	}
	mux.Handle("/status", local(newRecent(s.Status)))
	if s.Profile {
		mux.Handle("/debug/pprof/", fromHere(pprof.Index))
		mux.Handle("/debug/pprof/profile", fromHere(pprof.Profile))
		mux.Handle("/debug/pprof/symbol", fromHere(pprof.Symbol))
		mux.Handle("/debug/pprof/cmdline", fromHere(pprof.Cmdline))
		mux.Handle("/debug/pprof/trace", fromHere(pprof.Trace))
	}
	return mux
}

const plainText = "text/plain; charset=utf-8"

// plain answers as the health checks of Kubernetes' components do: "ok", or 500
// with what failed; with ?verbose also what did not. Its one check is called
// ping, as kube-proxy's is.
func (s Sources) plain(name string, good func(status.Health) bool) http.HandlerFunc {
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
