// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// noStreamingLists are the ways in which a server does not stream lists. Texts and codes
// are those of kube-apiserver 1.37 (apimachinery's ValidateListOptions, the
// apiserver's cacher.Watch and newErrWatcher) where it has any.
func noStreamingLists() map[string]apitest.Rule {
	return map[string]apitest.Rule{
		"WatchList disabled": {
			Status: 422, Reason: metav1.StatusReasonInvalid,
			Message: `ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled`,
		},
		"unknown parameter": {Status: 400, Reason: metav1.StatusReasonBadRequest, Message: "unknown parameter sendInitialEvents"},
		"etcd without progress requests": {
			Event: true, Status: 500, Reason: metav1.StatusReasonInternalError,
			Message: "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled",
		},
		"internal error": {Status: 500, Reason: metav1.StatusReasonInternalError, Message: "boom"},
		"cache that never catches up": {
			Status: 504, Reason: metav1.StatusReasonTimeout, Message: "Too large resource version: 9, current: 8", Cause: metav1.CauseTypeResourceVersionTooLarge,
		},
		"gateway without streams": {Status: 501, Message: "streams are not supported"},
		"stream that ends":        {Event: true},
	}
}

// streamed counts the streaming lists that were requested.
func (w *world) streamed(resource string) (n int) {
	for _, r := range w.server.Requests("watch", resource) {
		if r.Query.Get("sendInitialEvents") != "" {
			n++
		}
	}
	return n
}

// A server that cannot stream lists is followed by lists and watches, each kind
// of objects for itself, and is not asked to stream at every list.
func TestNoStreamingLists(t *testing.T) {
	for name, rule := range noStreamingLists() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{})
			rule.Resource, rule.Lists = "services", true
			w.server.Fail(rule)
			w.run().synced()
			w.becomes(initial)
			w.change()
			asked := w.streamed("services")
			w.server.Stop()
			w.server.Put(service("web", 81))
			w.server.Compact()
			if err := w.server.Restart(); err != nil {
				t.Fatal(err)
			}
			w.becomes(changed)
			w.noDeletes()
			if n := len(w.server.Requests("list", "services")); n != 2 {
				t.Errorf("listed Services %d times", n)
			}
			if n := w.streamed("services"); n != asked {
				t.Errorf("asked again for a streaming list: %d, then %d", asked, n)
			}
			if n := len(w.server.Requests("list", "endpointslices")); n != 0 {
				t.Errorf("listed EndpointSlices %d times, which can be streamed", n)
			}
		})
	}
}

// A server from before streaming lists ignores the request for one: the watch
// begins with everything, and never states that this was all, though changes follow.
func TestStreamingListNeverEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{OldWatch: true, Bookmarks: 50 * time.Millisecond})
	w.limits.silence = 500 * time.Millisecond
	w.run().until("synced while a Service changes", func() bool {
		w.server.Put(service("web", 80))
		time.Sleep(100 * time.Millisecond)
		synced, _, _ := w.sink.told()
		return len(synced) > 0
	})
	w.becomes(initial)
	w.change()
}

// After a while, lists are streamed again if the server can by then.
func TestStreamingListsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.limits.unary = time.Millisecond
	rule := noStreamingLists()["etcd without progress requests"]
	rule.Resource = "services"
	rule.Lists = true
	lift := w.server.Fail(rule)
	w.run().synced()
	w.becomes(initial)
	asked := w.streamed("services")
	lift()
	w.server.Stop()
	w.server.Put(service("web", 81))
	w.server.Compact()
	if err := w.server.Restart(); err != nil {
		t.Fatal(err)
	}
	w.becomes(changed)
	if n := len(w.server.Requests("list", "services")); n != 1 || w.streamed("services") == asked {
		t.Errorf("%d lists, %d streaming lists, before %d", n, w.streamed("services"), asked)
	}
}

// A list that ends part-way once, as when a server is restarted, is streamed again.
func TestStreamingListEndsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.server.Fail(apitest.Rule{Resource: "services", Lists: true, Event: true, Times: 1})
	w.run().synced()
	w.becomes(initial)
	if n := len(w.server.Requests("list", "services")); n != 0 || w.streamed("services") != 2 {
		t.Errorf("%d lists, %d streaming lists", n, w.streamed("services"))
	}
}

// A role may allow watch and not list. A server that then fails to stream once
// is not requested lists alone.
func TestStreamingListFailsWhereListIsForbidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.server.Fail(apitest.Rule{Resource: "services", Verb: "list", Status: 403, Reason: metav1.StatusReasonForbidden, Message: "no list"})
	w.server.Fail(apitest.Rule{Resource: "services", Lists: true, Times: 1, Status: 500, Reason: metav1.StatusReasonInternalError, Message: "boom"})
	w.run().synced()
	w.becomes(initial)
}

// A failure is logged though its text is another each time, and though the
// server accepts each watch before it fails; however many texts there are, few
// are logged or kept.
func TestFailureIsLoggedWhateverItsText(t *testing.T) {
	for name, event := range map[string]bool{"status": false, "event": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{})
			w.run().synced()
			for i := range 200 {
				w.server.Fail(apitest.Rule{
					Resource: "services", Times: 1, Event: event, Status: 500, Reason: metav1.StatusReasonInternalError,
					Message: "request " + time.Unix(int64(i), 0).Format(time.RFC3339) + " failed",
				})
			}
			w.server.Cut("services")
			w.until("the warning", func() bool { return strings.Contains(w.logs.String(), "failed") })
			if n := strings.Count(w.logs.String(), "level=WARN"); n > 2 {
				t.Errorf("%d warnings:\n%s", n, w.logs.String())
			}
		})
	}
}
