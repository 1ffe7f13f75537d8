// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// looks is how many single objects of a resource the server was asked for.
func looks(s *apitest.Server, resource string) (n int) {
	for _, r := range s.Requests("list", resource) {
		if r.Accept == onlyMetadata {
			n++
		}
	}
	return n
}

// The UID of an object is asked for once, however many Events it has; what is followed says when the object is another one.
func TestUIDsAreAskedForOnce(t *testing.T) {
	w := newWorld(t, apitest.Options{})
	web := func(uid types.UID) *corev1.Service {
		s := service("web", 80)
		s.UID = uid
		return s
	}
	w.server.Put(web("u1"))
	w.run().synced()
	writer, err := w.source.EventWriter()
	if err != nil {
		t.Fatal(err)
	}
	notes := 0
	write := func(kind, name string) {
		t.Helper()
		notes++
		r := events.Record{Event: events.Event{About: model.Key{Kind: kind, Namespace: "default", Name: name}, Type: events.Warning, Reason: "R", Action: "A", Note: fmt.Sprint(notes)}, Count: 1, First: time.Now(), Last: time.Now()}
		if err := writer.Write(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(uid types.UID, asked int) {
		t.Helper()
		for _, o := range w.server.Objects("events") {
			if e := o.(*eventsv1.Event); e.Note == fmt.Sprint(notes) && e.Regarding.UID != uid {
				t.Errorf("the Event is about %q, want %q", e.Regarding.UID, uid)
			}
		}
		if n := looks(w.server, "services"); n != asked {
			t.Errorf("asked %d times, want %d", n, asked)
		}
	}
	for range 3 {
		write("Service", "web")
		expect("u1", 1)
	}
	w.server.Put(web("u2")) // deleted and created, and the source has seen only what it is now
	w.until("the new one is seen", func() bool {
		w.source.uids.mu.Lock()
		defer w.source.uids.mu.Unlock()
		return w.source.uids.of[model.Key{Kind: "Service", Namespace: "default", Name: "web"}] == "u2"
	})
	write("Service", "web")
	expect("u2", 1)
	w.server.Delete(web("u2"))
	w.becomes("node node-1 a leaving=false, slice default/web-x 1")
	w.server.Put(web("u3"))
	w.becomes(initial)
	for range 2 {
		write("Service", "web")
		expect("u3", 2) // another life
	}
	for range 2 {
		write("EndpointSlice", "web-x")
	}
	if n := looks(w.server, "endpointslices"); n > 2 { // it has none
		t.Errorf("asked %d times for the EndpointSlice", n)
	}
}

// What is known is bounded, whatever has Events.
func TestUIDsAreBounded(t *testing.T) {
	u := &uids{of: map[model.Key]types.UID{}}
	key := func(i int) model.Key { return model.Key{Kind: "Service", Namespace: "ns", Name: fmt.Sprint(i)} }
	asked := 0
	for i := range 3 * maxUIDs {
		for range 2 {
			if got := u.get(key(i), func() types.UID { asked++; return types.UID(fmt.Sprint(i)) }); got != types.UID(fmt.Sprint(i)) {
				t.Fatalf("object %d has UID %s", i, got)
			}
		}
	}
	if asked != 3*maxUIDs || len(u.of) > maxUIDs {
		t.Errorf("asked %d times, %d are known", asked, len(u.of))
	}
	u.seen(key(-1), "other") // of which there is no Event
	if u.of[key(-1)] != "" {
		t.Error("the UID of an object without Events is kept")
	}
	// What is followed is newer than an answer that was on its way.
	u = &uids{of: map[model.Key]types.UID{}}
	if got := u.get(key(1), func() types.UID { u.seen(key(1), "new"); return "old" }); got != "new" || u.of[key(1)] != "new" {
		t.Errorf("UID %s, kept %s", got, u.of[key(1)])
	}
	u.get(key(2), func() types.UID { u.gone(key(2)); return "old" })
	u.get(key(3), func() types.UID { return "" })
	for _, i := range []int{2, 3} {
		if _, kept := u.of[key(i)]; kept {
			t.Errorf("object %d is kept", i)
		}
	}
}
