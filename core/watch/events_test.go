// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/events"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// shelf is the part of an API server that keeps Events.
type shelf struct {
	events map[string]map[string]any // by path
	asked  []string
	refuse int // answer so

	reason, details string // of that answer
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, r.Method)
	var body map[string]any
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&body); err != nil {
		s.fail(w, http.StatusBadRequest, err.Error(), "")
		return
	}
	if s.refuse != 0 {
		s.fail(w, s.refuse, cmp.Or(s.reason, "no"), s.details)
		return
	}
	path := r.URL.Path
	if r.Method == http.MethodPost {
		path += "/" + body["metadata"].(map[string]any)["name"].(string)
	}
	have := s.events[path]
	switch {
	case r.Method == http.MethodPost && have != nil:
		s.fail(w, http.StatusConflict, "AlreadyExists", "")
		return
	case r.Method == http.MethodPost:
		s.events[path] = body
		w.WriteHeader(http.StatusCreated)
	case r.Method != http.MethodPatch || r.Header.Get("Content-Type") != "application/merge-patch+json":
		s.fail(w, http.StatusMethodNotAllowed, r.Method, "")
		return
	case have == nil:
		s.fail(w, http.StatusNotFound, "NotFound", "")
		return
	default:
		for k, v := range body {
			have[k] = v
		}
	}
	_ = json.NewEncoder(w).Encode(s.events[path])
}

func (s *shelf) fail(w http.ResponseWriter, code int, reason, details string) {
	if details == "" {
		details = "null"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"details":%s}`, reason, code, details)
}

func writer(t *testing.T, s *shelf, node string) *watch.EventWriter {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	scheme := kruntime.NewScheme()
	if err := eventsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client, err := rest.RESTClientFor(&rest.Config{
		Host: server.URL, APIPath: "/apis", QPS: -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion: &eventsv1.SchemeGroupVersion, ContentType: kruntime.ContentTypeJSON,
			NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &watch.EventWriter{Client: client, Node: node}
}

func record(kind, namespace, name string) events.Record {
	at := time.Unix(1000, 0)
	return events.Record{
		Event: events.Event{About: model.Key{Kind: kind, Namespace: namespace, Name: name}, Type: events.Warning, Reason: "R", Action: "A", Note: "x"},
		Count: 1, First: at, Last: at.Add(time.Minute),
	}
}

func TestEventsAreWritten(t *testing.T) {
	s := &shelf{events: map[string]map[string]any{}}
	w := writer(t, s, "n1")
	r := record("Service", "shop", "web")
	if err := w.Write(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	path := "/apis/events.k8s.io/v1/namespaces/shop/events/" + r.Name("n1", "")
	got, _ := json.Marshal(s.events[path])
	for _, part := range []string{
		`"reportingController":"kube-proxy"`, `"reportingInstance":"tandem-n1"`, `"type":"Warning"`, `"reason":"R"`, `"action":"A"`, `"note":"x"`,
		`"regarding":{"apiVersion":"v1","kind":"Service","name":"web","namespace":"shop"}`, `"eventTime":"1970-01-01T00:16:40.000000Z"`,
	} {
		if !strings.Contains(string(got), part) {
			t.Errorf("%s is missing in %s", part, got)
		}
	}
	r.Count, r.Written = 5, true
	if err := w.Write(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if got, _ := json.Marshal(s.events[path]["series"]); string(got) != `{"count":5,"lastObservedTime":"1970-01-01T00:17:40.000000Z"}` {
		t.Errorf("series %s", got)
	}
	delete(s.events, path) // its time is over, or it was deleted
	if err := w.Write(t.Context(), r); err != nil || s.events[path]["series"] == nil {
		t.Errorf("a series whose Event is gone: %v, %v", err, s.events[path])
	}
	if err := w.Write(t.Context(), record("Node", "", "n1")); err != nil {
		t.Fatal(err)
	}
	n := record("Node", "", "n1")
	about, _ := json.Marshal(s.events["/apis/events.k8s.io/v1/namespaces/default/events/"+n.Name("n1", "n1")]["regarding"])
	if string(about) != `{"apiVersion":"v1","kind":"Node","name":"n1","uid":"n1"}` {
		t.Errorf("about %s", about)
	}
	for _, method := range s.asked {
		if method != http.MethodPost && method != http.MethodPatch {
			t.Errorf("a role of a node proxier has no verb for %s", method)
		}
	}
}

func TestEventsThatAreThereAlready(t *testing.T) {
	s := &shelf{events: map[string]map[string]any{}}
	one, two := writer(t, s, "n1"), writer(t, s, "n2")
	shared, own := record("Service", "shop", "web"), record("Service", "shop", "web")
	shared.Everywhere = true
	for _, w := range []*watch.EventWriter{one, two, two} {
		if err := w.Write(t.Context(), shared); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.events) != 1 || strings.Join(s.asked, " ") != "POST POST POST" {
		t.Errorf("%d Events, asked %v", len(s.events), s.asked)
	}
	for range 2 { // the second after a restart
		if err := one.Write(t.Context(), own); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.events) != 2 || s.asked[len(s.asked)-1] != "PATCH" {
		t.Errorf("%d Events, asked %v", len(s.events), s.asked)
	}
}

func TestEventsThatAreRefused(t *testing.T) {
	for code, final := range map[int]bool{400: true, 403: true, 404: true, 405: true, 422: true, 429: false, 500: false, 503: false} {
		s := &shelf{events: map[string]map[string]any{}, refuse: code}
		err := writer(t, s, "n1").Write(t.Context(), record("Service", "shop", "web"))
		if err == nil || errors.Is(err, events.ErrRejected) != final {
			t.Errorf("%d: %v", code, err)
		}
		if code == 403 && !strings.Contains(err.Error(), "verbs create and patch") {
			t.Errorf("%d: no hint in %v", code, err)
		}
	}
}

// An Event for a Service whose namespace is being deleted, or was, is no fault of anybody's.
func TestEventsInNamespacesThatAreDeleted(t *testing.T) {
	for _, tt := range []struct {
		code    int
		reason  string
		details string
		gone    bool
	}{
		{403, "Forbidden", `{"causes":[{"reason":"NamespaceTerminating","field":"metadata.namespace"}]}`, true},
		{404, "NotFound", `{"name":"shop","kind":"namespaces"}`, true},
		{403, "Forbidden", `{"kind":"events"}`, false},
		{404, "NotFound", `{"kind":"events"}`, false},
	} {
		s := &shelf{events: map[string]map[string]any{}, refuse: tt.code, reason: tt.reason, details: tt.details}
		err := writer(t, s, "n1").Write(t.Context(), record("Service", "shop", "web"))
		if !errors.Is(err, events.ErrRejected) || errors.Is(err, events.ErrNamespaceGone) != tt.gone {
			t.Errorf("%d %s: %v", tt.code, tt.details, err)
		}
	}
}

func TestLongNotesAreCut(t *testing.T) {
	s := &shelf{events: map[string]map[string]any{}}
	r := record("Service", "shop", "web")
	r.Note = strings.Repeat("ü", 2000)
	if err := writer(t, s, "n1").Write(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.events {
		note := e["note"].(string)
		if len(note) > 1024 || len(note) < 1000 || !strings.HasSuffix(note, "ü…") {
			t.Errorf("%d bytes: %s", len(note), note[len(note)-10:])
		}
	}
}

// connected returns a server, and what writes Events to it on the connection that everything shares.
func connected(t *testing.T) (*apitest.Server, *watch.EventWriter) {
	t.Helper()
	s, err := apitest.Start(apitest.Options{Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	client, err := watch.Connect(config.API{Server: s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w, err := client.Events("n1")
	if err != nil {
		t.Fatal(err)
	}
	return s, w
}

// On the connection that everything shares, in the API's own encoding.
func TestEventsOnTheSharedConnection(t *testing.T) {
	s, w := connected(t)
	if err := w.Write(t.Context(), record("Service", "shop", "web")); err != nil {
		t.Fatal(err)
	}
	all := s.Objects("events")
	if len(all) != 1 || all[0].(*eventsv1.Event).Regarding.Name != "web" {
		t.Errorf("the server has %v", all)
	}
}

// kubectl describe asks for Events by the UID of the object.
func TestEventsHaveTheUIDOfTheirObject(t *testing.T) {
	s, w := connected(t)
	meta := func(name string, uid types.UID) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: uid}
	}
	s.Put(
		&corev1.Service{ObjectMeta: meta("web", "u1")}, &corev1.Service{ObjectMeta: meta("other", "u2")},
		&discoveryv1.EndpointSlice{ObjectMeta: meta("web", "u3")},
	)
	for _, tt := range []struct {
		kind, name string
		uid        types.UID
	}{{"Service", "web", "u1"}, {"EndpointSlice", "web", "u3"}, {"Service", "gone", ""}} {
		if err := w.Write(t.Context(), record(tt.kind, "shop", tt.name)); err != nil {
			t.Fatal(err)
		}
		all := s.Objects("events")
		if !slices.ContainsFunc(all, func(o kruntime.Object) bool {
			about := o.(*eventsv1.Event).Regarding
			return about.Kind == tt.kind && about.Name == tt.name && about.UID == tt.uid
		}) {
			t.Errorf("no Event about %s %s with UID %q in %v", tt.kind, tt.name, tt.uid, all)
		}
	}
	again, before := record("Service", "shop", "web"), len(s.Objects("events"))
	s.Delete(&corev1.Service{ObjectMeta: meta("web", "u1")})
	s.Put(&corev1.Service{ObjectMeta: meta("web", "u4")})
	for range 2 { // by this run, or by one before
		if err := w.Write(t.Context(), again); err != nil {
			t.Fatal(err)
		}
		again.Written, again.Count = true, 2
	}
	again.Everywhere = true
	if err := w.Write(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	fresh := 0
	for _, o := range s.Objects("events") {
		if o.(*eventsv1.Event).Regarding.UID == "u4" {
			fresh++
		}
	}
	if n := len(s.Objects("events")); fresh != 2 || n != before+2 {
		t.Errorf("%d of %d Events are about the Service that was made again, want 2 of %d", fresh, n, before+2)
	}
	s.Fail(apitest.Rule{Resource: "services", Status: 403, Reason: metav1.StatusReasonForbidden, Message: "no"})
	if err := w.Write(t.Context(), record("Service", "shop", "other")); err != nil {
		t.Errorf("without the permission to list Services: %v", err)
	}
}
