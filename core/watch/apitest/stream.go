// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// stream is one watch that is open.
type stream struct {
	store     *store
	frozen    func() bool
	bookmarks time.Duration
	resource  *resource
	selector  selector
	format    format
	orders    chan order
	out       http.ResponseWriter
	at        atomic.Uint64 // all changes up to here are sent
	sent      []apiwatch.Event
}

// begin sends everything there is, and then the bookmark that ends the list.
func (st *stream) begin(objects []runtime.Object, now uint64) {
	if !st.initial(objects) {
		return
	}
	st.at.Store(now)
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
	if st.bookmarks > 0 {
		t := time.NewTicker(st.bookmarks)
		defer t.Stop()
		tick = t.C
	}
	for {
		frozen := st.frozen()
		changes, now, wake, ok := st.store.since(st.resource.name, st.at.Load())
		switch {
		case frozen:
			wake = nil
		case !ok:
			st.send(apiwatch.Event{Type: apiwatch.Error, Object: statusOf(http.StatusGone, metav1.StatusReasonExpired, "too old resource version")})
			return
		default:
			st.pass(changes)
			st.at.Store(now)
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
	setVersion(o, st.at.Load())
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
	must(st.format.events.Encode(event, st.format.framer.NewFrameWriter(struct{ io.Writer }{&whole})))
	return whole.Bytes()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
