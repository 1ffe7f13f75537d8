// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

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
	dispatcher *dispatcher
	status     *resourceStatus
	limits     limits
	lists      chan struct{} // holds a token while a list is decoded: one at a time, for memory

	versions  versions
	bookmarks bool // the server sends bookmarks of this kind
	suspect   bool // it has sent none in time, nor anything else since
	doubtful  bool // a watch has ended before its time: the server may have been restored since
	listing   bool
	older     bool      // the server refuses the kind's newer selector
	unary     bool      // the next list is one in pages
	parted    bool      // the last streaming list ended before it was complete
	rejected  time.Time // when the server last failed to stream a list
	at        string    // the resource version up to which all is known; empty when there is none
	backoff   backoff
}

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
	if f.listing {
		f.versions.epoch++
		if f.unary {
			return f.list(ctx)
		}
	} else if f.doubtful {
		err := f.sameHistory(ctx)
		if errors.Is(err, errRestored) {
			return err
		}
		f.doubtful = err != nil
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
		if f.backoff.rejected >= startRejections { // each watch expires at once
			f.status.failed(&f.kind, err)
		}
	case (expired(err) || tooLarge(err) || errors.Is(err, errRestored)) && f.at != "": // the server is another, or was restored
		f.relist()
		f.at = ""
		f.versions.distrust()
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
		f.dispatcher.goOn(&f.kind)
		starting := f.backoff.rejected < startRejections
		if absent && custom && !starting { // custom resources come last at a server's start
			if unproved := f.absent(ctx); unproved != nil {
				f.status.failed(&f.kind, fmt.Errorf("%w; keeping what is known: %w", err, unproved))
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
		if apierrors.IsForbidden(err) && f.backoff.rejected >= startRejections {
			f.dispatcher.ready(&f.kind, forbidden)
		}
		if f.listing && f.unary && answered(err) { // the role may allow watch alone
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
	if options.ResourceVersion == "" || options.ResourceVersion == "0" {
		options.Limit = pageSize // with any other version a limit would keep the server from using its cache
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
	ctx, cancel := context.WithTimeout(ctx, pageTime)
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
	if !ok || m.number == 0 || m.number != number(at) {
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
	h.known[n] = version{number: number(at), epoch: h.epoch, served: served}
}

func (h *versions) served(n name) bool { return h.known[n].served }

func (h *versions) delete(n name) { delete(h.known, n) }

// gone remembers at which version an object was deleted.
func (h *versions) gone(n name, at string) {
	if v := number(at); v > h.deleted.number {
		h.deleted = last{name: n, number: v, deleted: true}
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

func number(at string) uint64 {
	n, err := strconv.ParseUint(at, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
