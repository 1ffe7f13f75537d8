// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/printable"
)

// The z-pages of Kubernetes' components (KEP-4827, KEP-4828): /flagz and /statusz, as
// text, and as JSON for requests with a version of it. And /debug/flags/v.

// zHeader begins a page in text.
const zHeader = "\nkube-proxy %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// zVersions are the versions of both pages that kube-proxy 1.36 has.
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
