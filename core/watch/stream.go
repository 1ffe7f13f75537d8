// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// stream opens a watch and passes its events on until it ends. It returns nil if the
// watch can be resumed: if it ended normally or was silent for too long, and its
// initial list, if any, was complete. During that list only listed objects count as
// progress, not changes.
func (f *follower) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(f.limits.silence, func() { cancel(errSilent) })
	defer silence.Stop()
	metered, spent := withByteCount(ctx)

	start := time.Now()
	f.status.watch()
	options := f.watchOptions()
	defer func() { // it ended before its time
		f.doubtful = f.doubtful || time.Since(start) < time.Duration(*options.TimeoutSeconds)*time.Second
	}()
	w, err := f.get(options).Watch(metered)
	if err != nil {
		return causeOr(ctx, err)
	}
	defer w.Stop()
	if _, ok := w.(*apiwatch.StreamWatcher); !ok { // client-go makes some errors an empty watch
		return causeOr(ctx, errCut)
	}
	if f.listing {
		f.status.list()
	}
	works := time.AfterFunc(steadyTime, f.status.works)
	defer works.Stop()
	if f.listing || f.suspect { // the list may fail yet; more than a beginning is needed
		works.Stop()
	}
	if !f.suspect {
		f.status.answered()
	}
	events := 0
	for e := range w.ResultChan() {
		events++
		spent.Store(0)
		if err = f.event(e); err != nil {
			break
		}
		if f.listing && e.Type != apiwatch.Added { // no progress of the list
			continue
		}
		silence.Reset(f.limits.silence)
		f.suspect = false
		f.status.event(!f.listing)
	}
	steady := time.Since(start) >= steadyTime
	if steady && !f.listing {
		f.backoff.reset()
	}
	silent := errors.Is(context.Cause(ctx), errSilent)
	f.suspect = f.suspect || silent && f.bookmarks
	switch {
	case f.listing && silent:
		return errSilent
	case f.listing && err == nil:
		return errPart
	case silent:
		return nil
	case err != nil || steady:
		return err
	case events == 0:
		return errShort
	}
	return errCut
}

// causeOr returns why a stream's context was cancelled, and err if it was not.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (f *follower) watchOptions() *metav1.ListOptions {
	o := &metav1.ListOptions{
		LabelSelector: f.label, FieldSelector: f.fields(), ResourceVersion: f.at,
		Watch: true, AllowWatchBookmarks: true, TimeoutSeconds: watchTimeout(),
	}
	if f.listing {
		yes := true
		o.SendInitialEvents, o.ResourceVersionMatch = &yes, metav1.ResourceVersionMatchNotOlderThan
	}
	return o
}

// event passes one event on.
func (f *follower) event(e apiwatch.Event) error {
	if e.Type == apiwatch.Error {
		return apierrors.FromObject(e.Object)
	}
	m, err := meta.Accessor(e.Object)
	if err != nil {
		return err
	}
	at := m.GetResourceVersion()
	f.bookmarks = f.bookmarks || !f.listing && e.Type == apiwatch.Bookmark
	if f.listing {
		f.initial(e, m, at)
		return nil
	}
	if outdated(at, f.at) {
		return nil
	}
	f.backoff.reset() // only new events are progress: a list may be followed by 410 each time
	switch e.Type {
	case apiwatch.Added, apiwatch.Modified:
		f.put(e.Object, m)
	case apiwatch.Deleted:
		n := name{m.GetNamespace(), m.GetName()}
		f.drop(n)
		f.versions.gone(n, at)
	}
	f.at = at
	f.status.reached(at)
	return nil
}

// initial handles an event of a streaming list. Its objects come in any order of
// versions; the bookmark at the end has the version of the list.
func (f *follower) initial(e apiwatch.Event, m metav1.Object, at string) {
	switch e.Type {
	case apiwatch.Added, apiwatch.Modified:
		f.put(e.Object, m)
	case apiwatch.Deleted:
		f.drop(name{m.GetNamespace(), m.GetName()})
	case apiwatch.Bookmark:
		if m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			f.listed(at)
		}
	}
}

// outdated reports whether an event of version v is not newer than version at: a
// duplicate, or out of order. Events of a kind are sent in the order of their
// versions, which are numbers (KEP-5504); others cannot be compared and count as new.
func outdated(v, at string) bool {
	order, err := resourceversion.CompareResourceVersion(v, at)
	return err == nil && order <= 0
}

// put passes an object to the sink, unless it has this version of it.
func (f *follower) put(o runtime.Object, m metav1.Object) {
	n := name{intern(m.GetNamespace()), m.GetName()}
	if f.versions.same(n, m.GetResourceVersion()) {
		return
	}
	served, known := f.dispatcher.put(&f.kind, n, o, f.versions.served(n))
	if known {
		f.versions.set(n, m.GetResourceVersion(), served)
	} else {
		f.versions.delete(n)
	}
	f.status.objects(len(f.versions.known))
}

// drop removes an object from the sink.
func (f *follower) drop(n name) {
	f.dispatcher.drop(&f.kind, n, f.versions.served(n))
	f.versions.delete(n)
	f.status.objects(len(f.versions.known))
}

// dropAll removes all objects from the sink: there is no such kind any more.
func (f *follower) dropAll() {
	for n := range f.versions.known {
		f.drop(n)
	}
	f.unversion()
}

// listed ends a list: objects not in it are deleted.
func (f *follower) listed(at string) {
	for _, n := range f.versions.unseen() {
		f.drop(n)
		f.versions.gone(n, at) // or at an earlier version
	}
	f.listing, f.at, f.versions.complete, f.doubtful, f.parted = false, at, true, false, false
	f.status.listed()
	f.status.reached(at)
	f.dispatcher.listed(&f.kind)
}
