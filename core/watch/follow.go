package watch

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// follower keeps the sink up to date with one kind of objects. It belongs to
// the goroutine of run.
//
//	listing ──complete──▶ watching ──ended, cut, failed──▶ watching again where it ended
//	   ▲                     │
//	   └──── 410 Gone ───────┘
//
// A listing is a stream that starts with everything there is (WatchList,
// KEP-3157) and goes on as a watch. Where a server cannot do that it is a list in
// pages: with the WatchList gate off, or over an etcd without progress requests
// (before 3.4.31, and 3.5.0 to 3.5.12). How that shows differs between versions
// and proxies, so any failure counts that a list in pages need not share, as in
// client-go's Reflector. If that list fails as well, the next is streamed again.
type follower struct {
	kind
	client rest.Interface
	codec  runtime.ParameterCodec
	desk   *desk
	vitals *vitals
	limits limits
	lists  chan struct{} // holds a token while a list is decoded: one at a time, for memory

	held    held
	listing bool
	unary   bool      // the next list is one in pages
	refused time.Time // when the server last failed to stream a list
	at      string    // the resource version up to which all is known; empty when there is none
	pace    pace
}

// limits are times that tests shorten.
type limits struct {
	silence  time.Duration // without a sign of life a stream is cut
	stale    time.Duration // without a sign of life for so long something is wrong
	nodeWait time.Duration // how long the Node and ServiceCIDRs are waited for, once all else is there
	flush    time.Duration // how long changes of problems are collected
	unary    time.Duration // how long lists come in pages once the server failed to stream one
}

func defaultLimits() limits {
	return limits{silence: 70 * time.Second, stale: 85 * time.Second, nodeWait: 5 * time.Second, flush: 50 * time.Millisecond, unary: time.Hour}
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
		sleep(ctx, f.settle(err))
	}
}

// request makes the next request, and works on its answer until that ends.
func (f *follower) request(ctx context.Context) error {
	if f.listing {
		f.held.epoch++
		if f.unary {
			return f.list(ctx)
		}
	}
	return f.stream(ctx)
}

// settle draws the conclusions from how a request ended, and returns how long to
// wait before the next.
func (f *follower) settle(err error) time.Duration {
	switch {
	case err == nil:
		return 0
	case expired(err) && !f.listing: // what happened since is lost
		f.relist()
		if f.pace.refused >= startRefusals { // each watch expires at once
			f.vitals.failed(&f.kind, err)
		}
	case (expired(err) || tooLarge(err)) && f.at != "": // the server is another, or was restored
		f.relist()
		f.at = ""
	case f.listing && !f.unary && unstreamable(err):
		f.unary, f.refused = true, time.Now()
		f.vitals.unstreamable(err)
		return 0
	case f.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		f.desk.listed(&f.kind) // nobody waits for it
		if f.pace.refused < startRefusals {
			break
		}
		f.vitals.missing(&f.kind, err)
		return jitter(absentDelay, 0.2)
	default:
		if f.listing && f.unary && answered(err) { // the role may allow watch alone
			f.unary = false
		}
		f.vitals.failed(&f.kind, err)
	}
	return f.pace.after(err)
}

// relist makes the next request a list: streamed, unless the server failed to do
// that not long ago.
func (f *follower) relist() {
	f.listing = true
	f.unary = f.unary && time.Since(f.refused) < f.limits.unary
}

// list reads everything in pages, each dropped before the next.
func (f *follower) list(ctx context.Context) error {
	select {
	case f.lists <- struct{}{}:
		defer func() { <-f.lists }()
	case <-ctx.Done():
		return ctx.Err()
	}
	f.vitals.list()
	options := metav1.ListOptions{LabelSelector: f.label, FieldSelector: f.field, ResourceVersion: f.from()}
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
			at = page.GetResourceVersion()
		}
		if page.GetContinue() == "" {
			f.listed(at)
			return nil
		}
		options.Continue, options.ResourceVersion = page.GetContinue(), ""
	}
	return errors.New("the list does not end")
}

// from returns the version that a list must not be older than. The first one may
// be of any age, so that the server can answer from its cache.
func (f *follower) from() string {
	if f.at == "" && !f.held.complete {
		return "0"
	}
	return f.at
}

func (f *follower) page(ctx context.Context, options *metav1.ListOptions) (metav1.ListInterface, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	page := f.kind.list()
	if err := f.get(options).Do(ctx).Into(page); err != nil {
		return nil, err
	}
	f.vitals.answered()
	err := meta.EachListItem(page, func(o runtime.Object) error {
		m, err := meta.Accessor(o)
		if err == nil {
			f.put(o, m)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return meta.ListAccessor(page)
}

// get prepares a request. How often to try is decided by pace alone.
func (f *follower) get(options *metav1.ListOptions) *rest.Request {
	return f.client.Get().Resource(f.resource).VersionedParams(options, f.codec).MaxRetries(0)
}

// watchTimeout returns after how many seconds a server shall end a watch, so
// that watches move on to servers that are new. It is what Reflectors ask for.
func watchTimeout() *int64 {
	seconds := 300 + rand.Int64N(300)
	return &seconds
}

// unstreamable reports whether a streaming list failed where a list in pages may
// succeed: the server has accepted it and said nothing, or has answered, and not
// that it is busy or that the client may not.
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
