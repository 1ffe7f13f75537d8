// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	res := s.route(r.URL.Path)
	verb := verbOf(r)
	name := ""
	if res != nil {
		name = res.name
	}
	note := Request{verb, name, r.URL.Query(), r.Header.Get("Accept"), token, time.Now(), true}
	if !s.authentic(token) {
		s.note(note)
		status(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	rule, ruled := s.rule(verb, name, r.URL.Query().Get("sendInitialEvents") == "true")
	note.Failed = ruled && rule.Status >= 300
	s.note(note)
	if ruled {
		if rule.Event && res != nil {
			s.refuse(w, r, res, rule)
			return
		}
		if rule.apply(r.Context(), w) {
			return
		}
	}
	switch {
	case res == nil && s.discover(w, r.URL.Path):
	case res == nil:
		status(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	case verb == "create":
		s.create(w, r, res)
	case verb == "watch":
		s.watch(w, r, res)
	default:
		s.list(w, r, res)
	}
}

func verbOf(r *http.Request) string {
	switch {
	case r.Method == http.MethodPost:
		return "create"
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		return "watch"
	}
	if r.URL.Query().Get("resourceVersionMatch") == string(metav1.ResourceVersionMatchExact) {
		return "exact"
	}
	return "list"
}

// route returns the resource of a path such as /api/v1/services or
// /apis/events.k8s.io/v1/namespaces/default/events.
func (s *Server) route(path string) *resource {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	s.mu.Lock()
	r := s.resources[parts[len(parts)-1]]
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	prefix := "/apis/" + r.version.String() + "/"
	if r.version.Group == "" {
		prefix = "/api/" + r.version.Version + "/"
	}
	if !strings.HasPrefix(path, prefix) {
		return nil
	}
	return r
}

func (s *Server) selectorOf(r *http.Request) (sel selector, err error) {
	if field := r.URL.Query().Get("fieldSelector"); s.options.OldFields && strings.Contains(field, "spec.") {
		return sel, fmt.Errorf("field label not supported: %s", field)
	}
	if sel.labels, err = labels.Parse(r.URL.Query().Get("labelSelector")); err != nil {
		return sel, err
	}
	if sel.fields, err = fields.ParseSelector(r.URL.Query().Get("fieldSelector")); err != nil {
		return sel, err
	}
	if _, in, ok := strings.Cut(r.URL.Path, "/namespaces/"); ok {
		namespace, _, _ := strings.Cut(in, "/")
		sel.fields = fields.AndSelectors(sel.fields, fields.OneTermEqualSelector("metadata.namespace", namespace))
	}
	return sel, nil
}

// list answers a list, or a page of one.
func (s *Server) list(w http.ResponseWriter, r *http.Request, res *resource) {
	sel, err := s.selectorOf(r)
	if err != nil {
		status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	q := r.URL.Query()
	objects, version := s.store.snapshot(res.name, sel)
	if wanted, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64); wanted > version {
		tooLarge(w)
		return
	} else if q.Get("resourceVersionMatch") == string(metav1.ResourceVersionMatchExact) {
		var ok bool
		if objects, ok = s.store.exactly(res.name, sel, wanted); !ok {
			status(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
			return
		}
		version = wanted
	}
	from, after := 0, ""
	if _, err := fmt.Sscanf(q.Get("continue"), "%d|%s", &version, &after); err == nil {
		for from < len(objects) && keyOf(objects[from]) <= after {
			from++
		}
	}
	objects = objects[from:]
	left := ""
	// A watch cache does not look at the limit of a list that may be of any age.
	limit, _ := strconv.Atoi(q.Get("limit"))
	if limit > 0 && limit < len(objects) && (q.Get("resourceVersion") != "0" || s.options.NoCache) {
		left = fmt.Sprintf("%d|%s", version, keyOf(objects[limit-1]))
		objects = objects[:limit]
	}
	list := res.list(objects)
	m, err := meta.ListAccessor(list)
	if err != nil {
		panic(err)
	}
	m.SetResourceVersion(strconv.FormatUint(version, 10))
	m.SetContinue(left)
	f := formatOf(s.codecs, r, res.version)
	w.Header().Set("Content-Type", f.info.MediaType)
	_ = f.encoder.Encode(list, w) // the client is gone
}

// create adds the object that a request carries.
func (s *Server) create(w http.ResponseWriter, r *http.Request, res *resource) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	o, _, err := s.codecs.UniversalDeserializer().Decode(body, nil, res.one())
	if err != nil {
		status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	s.Put(o)
	f := formatOf(s.codecs, r, res.version)
	w.Header().Set("Content-Type", f.info.MediaType)
	w.WriteHeader(http.StatusCreated)
	_ = f.encoder.Encode(o, w) // the client is gone
}

// watch answers a watch until the client leaves, its time is up, or a fault
// ends it.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, res *resource) {
	sel, err := s.selectorOf(r)
	if err != nil {
		status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true" && !s.options.OldWatch
	if initial && s.options.NoWatchList {
		status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
		return
	}
	at, _ := strconv.ParseUint(q.Get("resourceVersion"), 10, 64)
	objects, now := s.store.snapshot(res.name, sel)
	if at > now {
		tooLarge(w)
		return
	}
	st := &stream{
		store: s.store, frozen: func() bool { return s.isFrozen(res.name) }, bookmarks: s.options.Bookmarks,
		resource: res, selector: sel, format: formatOf(s.codecs, r, res.version),
		orders: make(chan order, 16), out: w,
	}
	st.at.Store(at)
	ctx := r.Context()
	if seconds, _ := strconv.Atoi(q.Get("timeoutSeconds")); seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
		defer cancel()
	}
	s.open(st)
	defer s.close(st)
	w.Header().Set("Content-Type", st.format.info.MediaType+";stream=watch")
	_ = http.NewResponseController(w).Flush()
	switch {
	case initial:
		st.begin(objects, now)
	case at == 0 && s.options.OldWatch: // "Get State and Start at Any"
		st.initial(objects)
		st.at.Store(now)
	case at == 0:
		st.at.Store(now)
	}
	st.run(ctx)
}

// refuse opens a stream and ends it with a status, as a watch cache does that
// cannot answer (cacher.newErrWatcher). Without a status it just ends.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, res *resource, rule Rule) {
	st := &stream{resource: res, format: formatOf(s.codecs, r, res.version), out: w}
	w.Header().Set("Content-Type", st.format.info.MediaType+";stream=watch")
	_ = http.NewResponseController(w).Flush()
	if rule.Status == 0 {
		return
	}
	object := statusOf(rule.Status, rule.Reason, rule.Message)
	if causes := rule.causes(); causes != nil {
		object.Details = &metav1.StatusDetails{Causes: causes}
	}
	st.send(apiwatch.Event{Type: apiwatch.Error, Object: object})
}

func (s *Server) open(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = true
}

func (s *Server) close(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
}
