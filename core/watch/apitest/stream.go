// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// stream is one watch that is open.
type stream struct {
	server   *Server
	resource *resource
	selector selector
	format   format
	orders   chan order
	out      http.ResponseWriter
	at       uint64 // all changes up to here are sent
	sent     []apiwatch.Event
}

// watch answers a watch until the client leaves, its time is up, or a fault
// ends it.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, res *resource) {
	sel, err := selectorOf(r)
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
		server: s, resource: res, selector: sel, format: s.format(r, res.version),
		orders: make(chan order, 16), out: w, at: at,
	}
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
		st.at = now
	case at == 0:
		st.at = now
	}
	st.run(ctx)
}

// refuse opens a stream and ends it with a status, as a watch cache does that
// cannot answer (cacher.newErrWatcher). Without a status it just ends.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, res *resource, rule Rule) {
	st := &stream{server: s, resource: res, format: s.format(r, res.version), out: w}
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

// begin sends everything there is, and then the bookmark that says so.
func (st *stream) begin(objects []runtime.Object, now uint64) {
	if !st.initial(objects) {
		return
	}
	st.at = now
	o := st.bookmark()
	m, _ := meta.Accessor(o)
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	st.send(apiwatch.Event{Type: apiwatch.Bookmark, Object: o})
	st.flush()
}

// initial sends everything there is; ok is false when the client is gone.
func (st *stream) initial(objects []runtime.Object) (ok bool) {
	for _, o := range objects {
		if !st.send(apiwatch.Event{Type: apiwatch.Added, Object: o}) {
			return false
		}
	}
	st.flush()
	return true
}

// run sends changes as they come.
func (st *stream) run(ctx context.Context) {
	var tick <-chan time.Time
	if every := st.server.options.Bookmarks; every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
	}
	for {
		frozen := st.server.isFrozen(st.resource.name)
		changes, now, wake, ok := st.server.store.since(st.resource.name, st.at)
		switch {
		case frozen:
			wake = nil
		case !ok:
			st.send(apiwatch.Event{Type: apiwatch.Error, Object: statusOf(http.StatusGone, metav1.StatusReasonExpired, "too old resource version")})
			return
		default:
			st.pass(changes)
			st.at = now
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-tick:
			if !frozen {
				st.send(apiwatch.Event{Type: apiwatch.Bookmark, Object: st.bookmark()})
				st.flush()
			}
		case o := <-st.orders:
			if o.end {
				return
			}
			st.obey(o)
		}
	}
}

func (st *stream) pass(changes []change) {
	for _, c := range changes {
		if e, ok := c.event(st.selector); ok {
			st.sent = append(st.sent, e)
			st.send(e)
		}
	}
	if len(changes) > 0 {
		st.flush()
	}
}

func (st *stream) obey(o order) {
	if o.tear {
		frame := st.frame(apiwatch.Event{Type: apiwatch.Bookmark, Object: st.bookmark()})
		_, _ = st.out.Write(frame[:len(frame)/2])
		st.flush()
		panic(http.ErrAbortHandler)
	}
	for i := range min(o.replay, len(st.sent)) {
		st.send(st.sent[len(st.sent)-1-i])
	}
	st.flush()
}

func (st *stream) bookmark() runtime.Object {
	o := st.resource.one()
	setVersion(o, st.at)
	return o
}

func (st *stream) flush() { _ = http.NewResponseController(st.out).Flush() }

// send writes an event; ok is false when the client is gone.
func (st *stream) send(e apiwatch.Event) (ok bool) {
	_, err := st.out.Write(st.frame(e))
	return err == nil
}

// frame encodes an event.
func (st *stream) frame(e apiwatch.Event) []byte {
	var object, whole bytes.Buffer
	must(st.format.encoder.Encode(e.Object, &object))
	event := &metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Raw: object.Bytes()}}
	must(st.server.codecs.EncoderForVersion(st.format.info.StreamSerializer.Serializer, st.resource.version).
		Encode(event, st.format.framer.NewFrameWriter(struct{ io.Writer }{&whole})))
	return whole.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
