// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/sleep"
)

// Rule makes requests fail, or slow.
type Rule struct {
	Resource string // endpointslices; empty for all
	Verb     string // list, watch or create; empty for all
	Times    int    // so many requests; 0 for all until it is lifted
	Lists    bool   // only streaming lists

	Delay      time.Duration // before anything else
	Hang       bool          // no answer at all, while the client waits
	Status     int           // the answer; 0 is the ordinary one
	Reason     metav1.StatusReason
	Message    string
	Cause      metav1.CauseType
	RetryAfter int                       // seconds; 0 is no such header
	Event      bool                      // the status is an event of a stream that was opened
	Location   string                    // of a redirect
	Body       func(http.ResponseWriter) // what follows the header; nil is Message
	Media      string                    // the media type of Body
}

// apply does what a rule says, and reports whether that was the whole answer.
func (r Rule) apply(ctx context.Context, w http.ResponseWriter) (done bool) {
	if !sleep.For(ctx, r.Delay) {
		return true
	}
	if r.Hang {
		<-ctx.Done()
		return true
	}
	if r.Status == 0 {
		return false
	}
	if r.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(r.RetryAfter))
	}
	if r.Location != "" {
		w.Header().Set("Location", r.Location)
	}
	if r.Body != nil {
		w.Header().Set("Content-Type", r.Media)
		w.WriteHeader(r.Status)
		r.Body(w)
		return true
	}
	if r.Reason == "" { // as priority and fairness answers, or a load balancer
		http.Error(w, r.Message, r.Status)
		return true
	}
	status(w, r.Status, r.Reason, r.Message, r.causes()...)
	return true
}

func (r Rule) causes() []metav1.StatusCause {
	if r.Cause == "" {
		return nil
	}
	return []metav1.StatusCause{{Type: r.Cause, Message: r.Message}}
}

// order is an instruction to a stream; the zero value wakes it up.
type order struct {
	end, tear bool
	replay    int
}

// status answers with an error as an API server does.
func status(w http.ResponseWriter, code int, reason metav1.StatusReason, message string, causes ...metav1.StatusCause) {
	st := statusOf(code, reason, message)
	if len(causes) > 0 {
		st.Details = &metav1.StatusDetails{Causes: causes}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(st) // the client is gone
}

func statusOf(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
}

// tooLarge answers a request for a version that does not exist yet.
func tooLarge(w http.ResponseWriter) {
	status(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Too large resource version",
		metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"})
}
