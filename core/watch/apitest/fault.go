// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Fail adds a rule. The first one that fits a request counts. What it returns
// lifts the rule.
func (s *Server) Fail(r Rule) (lift func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &r
	s.rules = append(s.rules, p)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rules = slices.DeleteFunc(s.rules, func(o *Rule) bool { return o == p })
	}
}

// rule returns the rule for a request, and counts its use.
func (s *Server) rule(verb, resource string, lists bool) (Rule, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.rules {
		if (r.Resource != "" && r.Resource != resource) || (r.Verb != "" && r.Verb != verb) || r.Lists && !lists {
			continue
		}
		if r.Times--; r.Times == 0 {
			s.rules = slices.Delete(s.rules, i, i+1)
		}
		return *r, true
	}
	return Rule{}, false
}

// apply does what a rule says, and reports whether that was the whole answer.
func (r Rule) apply(ctx context.Context, w http.ResponseWriter) (done bool) {
	select {
	case <-time.After(r.Delay):
	case <-ctx.Done():
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
	if r.Reason == "" { // as priority and fairness answers, or something on the way
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

// Freeze makes the open streams of a resource, and those to come, send nothing
// more, though their connections stay open. What it returns ends that.
func (s *Server) Freeze(resource string) (thaw func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen[resource]++
	return func() {
		s.mu.Lock()
		s.frozen[resource]--
		s.mu.Unlock()
		s.order(resource, order{})
	}
}

func (s *Server) isFrozen(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen[resource] > 0
}

// Cut ends the open streams of a resource as a server does that is told to stop.
func (s *Server) Cut(resource string) { s.order(resource, order{end: true}) }

// Tear cuts the open streams of a resource in the middle of an event: half of a
// bookmark is sent, and the connection reset.
func (s *Server) Tear(resource string) { s.order(resource, order{tear: true}) }

// Replay makes the open streams of a resource send their last changes again, the
// newest first: duplicates, and in the wrong order.
func (s *Server) Replay(resource string, changes int) { s.order(resource, order{replay: changes}) }

// order is what a stream is told to do; nothing wakes it up.
type order struct {
	end, tear bool
	replay    int
}

func (s *Server) order(resource string, o order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.resource.name == resource {
			select {
			case st.orders <- o:
			default: // it has enough to do
			}
		}
	}
}
