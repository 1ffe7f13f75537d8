// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
)

// Probes answers load balancers and kubelets on /healthz and /livez, in
// kube-proxy's words (KEP-3458, KEP-3836), whatever the method of the request. health is called for every request;
// counted, unless nil, gets the probe ("healthz" or "livez") and the response's
// code.
//
// /healthz states whether this node may get traffic: not before everything was
// programmed once, not while changes are stuck, and not when the node is about to
// go. /livez fails only while changes are stuck: a restart would help nothing
// else, least of all an API server that is away.
func Probes(health func() question.Health, counted func(probe string, code int)) http.Handler {
	mux := http.NewServeMux()
	probe := func(name string, good func(question.Health) bool, node bool) {
		mux.HandleFunc("/"+name, func(w http.ResponseWriter, _ *http.Request) {
			h := health()
			code := http.StatusOK
			if !good(h) {
				code = http.StatusServiceUnavailable
			}
			if counted != nil {
				counted(name, code)
			}
			w.Header().Set("Connection", "close") // a probe is one request
			write(w, code, answerOf(h, code == http.StatusOK, node))
		})
	}
	probe("healthz", question.Health.Ready, true)
	probe("livez", question.Health.Alive, false)
	return mux
}

// answer is the document of a probe. All but Reasons are kube-proxy's fields.
type answer struct {
	LastUpdated  time.Time         `json:"lastUpdated"`
	CurrentTime  time.Time         `json:"currentTime"`
	NodeEligible *bool             `json:"nodeEligible,omitempty"`
	Healthy      bool              `json:"healthy"`
	Status       map[string]family `json:"status,omitempty"`
	Reasons      []string          `json:"reasons,omitempty"` // what is wrong, whether or not it makes the node unfit
}

type family struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// answerOf renders a probe's answer. One sync programs both families, so they
// fare alike.
func answerOf(h question.Health, good, node bool) answer {
	a := answer{LastUpdated: h.SyncedAt, CurrentTime: h.At, Healthy: h.Healthy(), Reasons: h.Reasons}
	if good {
		a.LastUpdated = h.At // kube-proxy: recent while all is well, though nothing changed
	}
	if node {
		eligible := !h.Leaving && !h.Unfit
		a.NodeEligible = &eligible
	}
	if !h.SyncedAt.IsZero() {
		a.Status = map[string]family{}
		for _, f := range model.Families() {
			a.Status[f.String()] = family{LastUpdated: h.SyncedAt, Healthy: h.Healthy()}
		}
	}
	return a
}

// write answers with a document on one line.
func write(w http.ResponseWriter, code int, doc any) {
	b, err := json.Marshal(doc)
	writeJSON(w, code, b, err)
}

// writeIndented answers with a document in the way in which kube-proxy indents
// those of its checks.
func writeIndented(w http.ResponseWriter, code int, doc any) {
	b, err := json.MarshalIndent(doc, "", "\t")
	writeJSON(w, code, b, err)
}

func writeJSON(w http.ResponseWriter, code int, b []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeBytes(w, code, "application/json", b)
}

func writeBytes(w http.ResponseWriter, code int, kind string, parts ...[]byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	for _, b := range parts {
		if _, err := w.Write(b); err != nil {
			return // the client may be gone
		}
	}
}
