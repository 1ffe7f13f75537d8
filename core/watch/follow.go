// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// follower keeps the sink up to date with one kind of objects. It belongs to
// the goroutine of run.
//
//	listing ──complete──▶ watching ──ended, cut, failed──▶ watching again where it ended
//	   ▲                     │
//	   └──── 410 Gone ───────┘
//
// A listing is a stream that starts with everything there is (WatchList, KEP-3157)
// and continues as a watch. Where a server cannot do that it is a list in pages: with
// the WatchList gate off, or over an etcd without progress requests (before 3.4.31,
// and 3.5.0 to 3.5.12). The symptoms differ between versions and proxies, so any
// failure counts that a paged list may not have, as in client-go's Reflector. But a stream
// that just ends is asked for once more: the server may have been restarted. If the
// paged list fails as well, the next one is streamed again.
type follower struct {
	kind
	clients    []rest.Interface // one each for the version and the fallbacks
	in         int              // which of them is used
	codec      runtime.ParameterCodec
	decoders   runtime.ClientNegotiator // of watches, by the type of the answer
	dispatcher *dispatcher
	status     *resourceStatus
	limits     limits
	lists      chan struct{} // holds a token while a list is decoded: one at a time, for memory
	uids       *uids
	restores   *restores // of the server, as all followers have found
	restored   int       // how many of them this one has made good

	versions  versions
	bookmarks bool // the server sends bookmarks of this kind
	suspect   bool // it has sent none in time, nor anything else since
	doubtful  bool // a watch has ended before its time: the server may have been restored since
	listing   bool
	older     bool      // the server refuses the kind's newer selector
	unary     bool      // the next list is one in pages
	shrunk    int       // how many times a page was too large
	parted    bool      // the last streaming list ended before it was complete
	rejected  time.Time // when the server last failed to stream a list
	at        string    // the resource version up to which all is known; empty when there is none
	backoff   backoff
}

// A server's cache does not look at the size of a page, and a few hundred objects may be as large as etcd stores. So
// where a page is too large the next ones are read from storage, each time with an eighth of the objects.
const (
	pageSize = 500             // objects of a page
	maxPages = 100_000         // of a list; 50 million objects
	pageTime = 2 * time.Minute // for one page; servers give up after one by default
)

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	f.listing = true
	for ctx.Err() == nil {
		err := f.request(ctx)
		if ctx.Err() != nil {
			return
		}
		sleep.For(ctx, f.nextDelay(ctx, err))
	}
}

// request makes the next request and handles its answer to the end.
func (f *follower) request(ctx context.Context) error {
	if f.restores.since(f.restored) {
		return errRestored
	}
	if f.listing {
		f.versions.epoch++
		if f.unary {
			return f.list(ctx)
		}
	}
	return f.stream(ctx)
}

// nextDelay chooses the next request from how the last one ended, and returns how long to
// wait before the next.
func (f *follower) nextDelay(ctx context.Context, err error) time.Duration {
	switch {
	case err == nil:
		return 0
	case apierrors.IsBadRequest(err) && f.newer != "" && !f.older:
		f.older = true
		return 0
	case expired(err) && !f.listing: // later changes are lost
		f.relist()
		if f.backoff.rejections >= startRejections { // each watch expires at once
			f.status.failed(&f.kind, err)
		}
	case errors.Is(err, errRestored), (expired(err) || tooLarge(err)) && f.at != "": // the server is another, or was restored
		if !expired(err) {
			f.restored = f.restores.found(f.restored)
		}
		f.relist()
		f.at = ""
		f.versions.forgetNumbers()
	case f.listing && !f.unary && errors.Is(err, errPart) && !f.parted:
		f.parted = true
		f.status.failed(&f.kind, err)
	case f.listing && !f.unary && unstreamable(err):
		f.unary, f.rejected = true, time.Now()
		f.status.unstreamable(err)
		return 0
	case f.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		absent, custom := apierrors.IsNotFound(err), len(f.fallbacks) > 0
		if absent {
			if f.in = (f.in + 1) % len(f.clients); f.in > 0 { // older versions are tried at once
				f.unversion()
				return 0
			}
		}
		f.dispatcher.proceedWithout(&f.kind)
		starting := f.backoff.rejections < startRejections
		if absent && custom && !starting { // custom resources come last at a server's start
			if unproved := f.absent(ctx); unproved != nil {
				f.status.failed(&f.kind, fmt.Errorf("%w; keeping the last known objects: %w", err, unproved))
				break
			}
			f.dropAll()
		}
		switch {
		case absent && !(custom && starting):
			f.dispatcher.listed(&f.kind)
		case !absent && !starting:
			f.dispatcher.ready(&f.kind, forbidden)
		}
		if starting {
			break
		}
		f.status.missing(&f.kind, err)
		return jitter(f.limits.absent, 0.2)
	default:
		if apierrors.IsForbidden(err) && f.backoff.rejections >= startRejections {
			f.dispatcher.ready(&f.kind, forbidden)
		}
		switch {
		case f.listing && f.unary && errors.Is(err, errTooMuch):
			f.shrunk = min(f.shrunk+1, 3)
		case f.listing && f.unary && answered(err): // the role may allow watch alone
			f.unary = false
		}
		f.status.failed(&f.kind, err)
	}
	return f.backoff.after(err)
}

// relist makes the next request a list: streamed, unless the server failed to do
// that not long ago.
func (f *follower) relist() {
	f.listing = true
	f.unary = f.unary && time.Since(f.rejected) < f.limits.unary
}

// unversion makes the next request a list in a version of the API of which nothing is
// known yet.
func (f *follower) unversion() {
	f.listing, f.at = true, ""
}

// list reads everything in pages, each dropped before the next.
func (f *follower) list(ctx context.Context) error {
	select {
	case f.lists <- struct{}{}:
		defer func() { <-f.lists }()
	case <-ctx.Done():
		return ctx.Err()
	}
	options := metav1.ListOptions{LabelSelector: f.label, FieldSelector: f.fields(), ResourceVersion: f.from()}
	if f.shrunk > 0 {
		options.ResourceVersion = ""
	}
	if options.ResourceVersion == "" || options.ResourceVersion == "0" {
		options.Limit = max(1, int64(pageSize)>>(3*f.shrunk)) // with any other version a limit would keep the server from using its cache
	}
	var at string
	for range maxPages {
		page, err := f.page(ctx, &options)
		if err != nil {
			return err
		}
		if at == "" { // all pages are of this version, or newer: then the watch repeats what was new
			f.status.list()
			at = page.GetResourceVersion()
		}
		if page.GetContinue() == "" {
			f.listed(at)
			return nil
		}
		options.Continue, options.ResourceVersion = page.GetContinue(), ""
	}
	return errors.New("list has too many pages")
}

// fields returns the field selector. Objects that a newer one keeps away are not served
// in any case.
func (f *follower) fields() string {
	if f.newer != "" && !f.older {
		return f.newer
	}
	return f.field
}

// from returns the version that a list must not be older than. The first one may
// be of any age, so that the server can answer from its cache.
func (f *follower) from() string {
	if f.at == "" && !f.versions.complete {
		return "0"
	}
	return f.at
}

func (f *follower) page(ctx context.Context, options *metav1.ListOptions) (metav1.ListInterface, error) {
	ctx, cancel := context.WithTimeout(within(ctx, f.limits.answer), pageTime)
	defer cancel()
	result := f.get(options).Do(ctx)
	if result.Error() == nil {
		f.status.answered()
	}
	items := int64(0)
	list, err := f.eachItem(result, func(o runtime.Object, m metav1.Object) error {
		if items++; options.Limit > 0 && options.ResourceVersion != "0" && items > options.Limit { // a server's cache may ignore it
			return fmt.Errorf("more items than the limit of %d", options.Limit)
		}
		f.put(o, m)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &list, nil
}

// get prepares a request. How often to try is decided by backoff alone.
func (f *follower) get(options *metav1.ListOptions) *rest.Request {
	return f.clients[f.in].Get().Resource(f.resource).VersionedParams(options, f.codec).MaxRetries(0)
}

// watchTimeout returns after how many seconds a server ends a watch, so
// that watches move on to servers that are new. It is what Reflectors ask for.
func watchTimeout() *int64 {
	seconds := 300 + rand.Int64N(300)
	return &seconds
}

// unstreamable reports whether a streaming list failed in a way that a paged list may
// not: the server accepted it and sent nothing, or returned an error other than "too
// many requests" or "forbidden".
func unstreamable(err error) bool {
	if _, wait := apierrors.SuggestsClientDelay(err); wait && !tooLarge(err) {
		return false
	}
	switch {
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err), apierrors.IsNotFound(err),
		apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), expired(err):
		return false
	}
	return answered(err) || errors.Is(err, errSilent)
}

func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// tooLarge reports whether a server has not reached a version yet.
func tooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// versions are the object versions that a follower has seen; objects are not kept.
type versions struct {
	known    map[name]version
	deleted  last   // the latest deletion
	epoch    uint32 // counts listings
	complete bool   // one listing has ended
}

// version is the state kept of one object.
type version struct {
	number uint64 // 0 when it is no number
	epoch  uint32 // of the last listing that named it
	served bool   // the sink knows it
}

// same reports whether a version of an object is the one that is known, and if
// so marks it as seen.
func (h *versions) same(n name, at string) bool {
	m, ok := h.known[n]
	if !ok || m.number == 0 || m.number != versionNumber(at) {
		return false
	}
	m.epoch = h.epoch
	h.known[n] = m
	return true
}

// set remembers a version of an object.
func (h *versions) set(n name, at string, served bool) {
	if h.known == nil {
		h.known = map[name]version{}
	}
	h.known[n] = version{number: versionNumber(at), epoch: h.epoch, served: served}
}

func (h *versions) served(n name) bool { return h.known[n].served }

func (h *versions) delete(n name) { delete(h.known, n) }

// gone remembers at which version an object was deleted, or up to which it was where no event was seen.
func (h *versions) gone(n name, at string, seen bool) {
	if v := versionNumber(at); v > h.deleted.number {
		h.deleted = last{name: n, number: v, deleted: true, seen: seen}
	}
}

// unseen returns the objects that the current listing did not name.
func (h *versions) unseen() (ns []name) {
	for n, m := range h.known {
		if m.epoch != h.epoch {
			ns = append(ns, n)
		}
	}
	return ns
}

// stream opens a watch and passes its events on until it ends. It returns nil if the
// watch can be resumed: if it ended normally or was silent for too long, and its
// initial list, if any, was complete. During that list only listed objects count as
// progress, not changes.
func (f *follower) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(f.limits.silence, func() { cancel(errSilent) })
	defer silence.Stop()
	go f.restores.wait(ctx, f.restored, func() { cancel(errRestored) })
	metered, answer := withByteCount(ctx)

	start := time.Now()
	f.status.watch()
	options := f.watchOptions()
	defer func() { // it ended before its time
		f.doubtful = f.doubtful || time.Since(start) < time.Duration(*options.TimeoutSeconds)*time.Second
	}()
	body, err := f.get(options).Stream(metered)
	if err != nil {
		return causeOr(ctx, err)
	}
	defer body.Close()
	from, err := f.decoder(body, answer.content)
	if err != nil {
		return err
	}
	if f.listing {
		f.status.list()
	} else if f.doubtful { // asked once the watch is open: until then, the server may still be restored
		err := f.sameHistory(ctx)
		if errors.Is(err, errRestored) || err != nil && f.backoff.rejections < startRejections {
			return err
		}
		f.doubtful = err != nil
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
	for {
		var e apiwatch.Event
		if e, err = nextEvent(from); err != nil {
			break
		}
		events++
		answer.spent = 0
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
	if errors.Is(context.Cause(ctx), errRestored) {
		return errRestored
	}
	silent := errors.Is(context.Cause(ctx), errSilent)
	f.suspect = f.suspect || silent && f.bookmarks
	if errors.Is(err, io.EOF) {
		err = nil
	}
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
		f.versions.gone(n, at, true)
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
	f.uids.seen(f.keyOf(n), m.GetUID())
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
	f.uids.gone(f.keyOf(n))
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
		f.versions.gone(n, at, false)
	}
	f.listing, f.at, f.versions.complete, f.doubtful, f.parted = false, at, true, false, false
	f.status.listed()
	f.status.reached(at)
	f.dispatcher.listed(&f.kind)
}

// limits are times, and a size, that tests shorten.
type limits struct {
	answer   int64         // bytes of a list, or of a page of one
	silence  time.Duration // without an event or bookmark a stream is cancelled
	stale    time.Duration // without an answer, event or bookmark for so long the state is stale
	nodeWait time.Duration // how long the Node and ServiceCIDRs are waited for, once all else is there
	flush    time.Duration // how long changes of problems are collected
	absent   time.Duration // between requests for optional resources that a server lacks or forbids
	unary    time.Duration // how long lists come in pages once the server failed to stream one
}

func defaultLimits() limits {
	return limits{answer: maxAnswer, silence: 70 * time.Second, stale: 85 * time.Second, nodeWait: 5 * time.Second, flush: 50 * time.Millisecond, absent: 10 * time.Minute, unary: time.Hour}
}

var (
	errSilent = errors.New("no response within the time limit")
	errCut    = errors.New("connection closed")
	errShort  = errors.New("watch ended at once")
	errPart   = errors.New("stream ended before the list was complete")
	errUnread = errors.New("watch cannot be read")

	errRestored = errors.New("the API server has other objects at this resourceVersion: it was restored from a backup")
)

// How long to wait between requests of one kind of objects that fail. A server that
// does not answer is retried often, which costs it nothing, so that changes arrive
// within a second of its return. A server that answers with errors is retried quickly
// at first, since it may be starting, and then more slowly, since thousands of nodes
// do the same.
const (
	unansweredFirst, unansweredMost = 50 * time.Millisecond, 500 * time.Millisecond
	rejectedFirst, rejectedMost     = 100 * time.Millisecond, 30 * time.Second
	longestDelay                    = 2 * time.Minute // that a server may ask for
)

// startRejections is how many times in a row a starting server may reject requests
// before it has loaded its authorization rules: about three seconds.
const startRejections = 5

// steadyTime is how long a stream must have lasted to count as a success.
const steadyTime = time.Second

// backoff is how long to wait after a failed request. The zero value is ready.
type backoff struct {
	unanswered, rejected time.Duration // the last waits after a failure without an answer, and with one; zero after a success
	rejections           int           // since the last success
}

// reset notes a success.
func (p *backoff) reset() { *p = backoff{} }

// after returns how long to wait after a failure. What a server asks for is the least: many
// answer with one second however long they are overloaded.
func (p *backoff) after(err error) time.Duration {
	seconds, asks := apierrors.SuggestsClientDelay(err)
	if !asks && !answered(err) {
		p.unanswered = sleep.Longer(p.unanswered, unansweredFirst, unansweredMost)
		return jitter(p.unanswered, 0.5)
	}
	p.rejections++
	p.rejected = sleep.Longer(p.rejected, rejectedFirst, rejectedMost)
	asked := min(time.Duration(seconds)*time.Second, longestDelay)
	return max(jitter(asked, 0.2), jitter(p.rejected, 0.5))
}

// answered reports whether an error is the server's answer, or about its content.
func answered(err error) bool {
	for _, own := range []error{errShort, errPart, errUnread, errTooMuch, errRedirect, errRestored} {
		if errors.Is(err, own) {
			return true
		}
	}
	return errors.As(err, new(apierrors.APIStatus))
}

// jitter adds a random part of a time to it, so that nodes do not ask all at
// once.
func jitter(d time.Duration, part float64) time.Duration {
	return d + time.Duration(rand.Float64()*part*float64(d))
}

// A server whose etcd was restored from a backup uses the numbers of lost versions again,
// for other changes. Once it has passed the version that is known here, it resumes a watch
// as if nothing had been lost; Kubernetes advises to start all of its components again. So
// when a watch ended before its time, the next one is read only after the object that changed
// last was read as it was at that version, and one that was deleted still later, which must have
// been there just before: one or two objects, not a list. A server that keeps failing to say what
// it had is watched all the same.
//
// What one follower finds all make good: bookmarks take a watch on to versions at which its own kind had no change, and
// then its objects do not tell the two histories apart. Where nothing at all was changed in what is lost, none do: what is
// changed before the server has passed the version that is known here is then missed, until that object changes again.

// restores counts how often the server was restored from a backup, for all followers of a source.
type restores struct {
	mu   sync.Mutex
	n    int
	more chan struct{} // closed when there is one more; nil until somebody waits
}

// found notes a restore, unless another follower has noted one since there were n, and returns how many there are.
func (r *restores) found(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == n {
		r.n++
		if r.more != nil {
			close(r.more)
			r.more = nil
		}
	}
	return r.n
}

// since reports whether there are more than n.
func (r *restores) since(n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n != n
}

// wait calls a function when there are more than n, unless ctx has ended before.
func (r *restores) wait(ctx context.Context, n int, then func()) {
	r.mu.Lock()
	if r.more == nil {
		r.more = make(chan struct{})
	}
	more, already := r.more, r.n != n
	r.mu.Unlock()
	if !already {
		select {
		case <-ctx.Done():
			return
		case <-more:
		}
	}
	then()
}

// historyTime is for reading one object. Without an answer the server is asked again.
const historyTime = 5 * time.Second

// sameHistory returns errRestored if the server's versions are not those that led here,
// nil if they are or if this server cannot tell, and other errors if it is to be asked again.
func (f *follower) sameHistory(ctx context.Context) error {
	for _, last := range f.versions.latest() {
		found, err := f.foundAt(ctx, last.name, f.at)
		same := found == last.number || last.deleted && found == 0
		if err == nil && same && last.seen { // who restores a backup may delete the same object again
			found, err = f.foundAt(ctx, last.name, strconv.FormatUint(last.number-1, 10))
			same = found != 0
		}
		switch {
		case tooLarge(err), err == nil && !same:
			return errRestored
		case err != nil && !unknownVersion(err):
			return err
		}
	}
	return nil
}

// unknownVersion reports whether a server answers that it cannot tell what it had at a version.
func unknownVersion(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || expired(err)
}

// foundAt returns which version of an object the server had at a version of all; 0 is none.
func (f *follower) foundAt(ctx context.Context, n name, at string) (found uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(f.limits.silence, historyTime))
	defer cancel()
	ctx, _ = withByteCount(ctx) // one object is bounded as an event is
	options := metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, n.Name).String(),
		ResourceVersion: at, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}
	_, err = f.eachItem(f.get(&options).Namespace(n.Namespace).Do(ctx), func(_ runtime.Object, m metav1.Object) error {
		found = versionNumber(m.GetResourceVersion())
		return nil
	})
	return found, err
}

// last is the latest change of an object that is known.
type last struct {
	name
	number  uint64
	deleted bool
	seen    bool // an event told of the deletion, which has this number; else it was at this one or earlier
}

// latest returns the latest change of an object that is there, and the latest deletion if
// that is later. A restore that undoes changes undoes the latest.
func (h *versions) latest() (all []last) {
	var l last
	for n, v := range h.known {
		if v.number > l.number {
			l = last{name: n, number: v.number}
		}
	}
	if l.number > 0 {
		all = append(all, l)
	}
	if h.deleted.number > l.number {
		all = append(all, h.deleted)
	}
	return all
}

// forgetNumbers forgets which versions objects have: their numbers may be those of other changes.
func (h *versions) forgetNumbers() {
	h.deleted = last{}
	for n, v := range h.known {
		v.number = 0
		h.known[n] = v
	}
}

// absent returns nil if the server's own list of what it serves (/apis) lacks the kind in
// every version. A request that is answered with 404 does not prove that: a proxy or a load
// balancer in front of the server answers so, too, and a server's own 404 for an unknown
// path is no Status by which to tell them apart.
func (f *follower) absent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(f.limits.silence, historyTime))
	defer cancel()
	var groups metav1.APIGroupList
	if err := f.discover(ctx, "/apis", "APIGroupList", &groups); err != nil {
		return err
	}
	if len(groups.Groups) == 0 {
		return fmt.Errorf("no groups in /apis")
	}
	for _, g := range groups.Groups {
		if g.Name != f.version.Group {
			continue
		}
		for _, v := range g.Versions {
			var served metav1.APIResourceList
			if err := f.discover(ctx, "/apis/"+v.GroupVersion, "APIResourceList", &served); err != nil {
				return err
			}
			for _, r := range served.APIResources {
				if r.Name == f.resource {
					return fmt.Errorf("%s is in the API server's list of %s", f.resource, v.GroupVersion)
				}
			}
		}
	}
	return nil
}

// discover reads one of the server's lists of what it serves.
func (f *follower) discover(ctx context.Context, path, kind string, into any) error {
	ctx, _ = withByteCount(ctx) // bounded as an event is
	text, err := f.clients[0].Get().AbsPath(path).SetHeader("Accept", "application/json").MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return err
	}
	var is metav1.TypeMeta
	if err := json.Unmarshal(text, &is); err != nil {
		return err
	}
	if is.Kind != kind {
		return fmt.Errorf("%s is a %q, not a %s", path, printable.CutBytes(is.Kind, maxText), kind)
	}
	return json.Unmarshal(text, into)
}
