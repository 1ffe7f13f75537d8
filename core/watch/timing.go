// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// limits are times that tests shorten.
type limits struct {
	silence  time.Duration // without an event or bookmark a stream is cancelled
	stale    time.Duration // without an answer, event or bookmark for so long the state is stale
	nodeWait time.Duration // how long the Node and ServiceCIDRs are waited for, once all else is there
	flush    time.Duration // how long changes of problems are collected
	absent   time.Duration // between requests for optional resources that a server lacks or forbids
	unary    time.Duration // how long lists come in pages once the server failed to stream one
}

func defaultLimits() limits {
	return limits{silence: 70 * time.Second, stale: 85 * time.Second, nodeWait: 5 * time.Second, flush: 50 * time.Millisecond, absent: 10 * time.Minute, unary: time.Hour}
}

var (
	errSilent = errors.New("no response within the time limit")
	errCut    = errors.New("connection closed")
	errShort  = errors.New("watch ended at once")
	errPart   = errors.New("stream ended before the list was complete")

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
	unanswered, rejected int // failures since the last success: without an answer, with one
}

// reset notes a success.
func (p *backoff) reset() { *p = backoff{} }

// after returns how long to wait after a failure.
func (p *backoff) after(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		p.rejected++
		return jitter(min(time.Duration(seconds)*time.Second, longestDelay), 0.2)
	}
	if answered(err) {
		p.rejected++
		return jitter(doubled(rejectedFirst, rejectedMost, p.rejected-1), 0.5)
	}
	p.unanswered++
	return jitter(doubled(unansweredFirst, unansweredMost, p.unanswered-1), 0.5)
}

// answered reports whether an error is the server's answer, or about its content.
func answered(err error) bool {
	for _, own := range []error{errShort, errPart, errTooMuch, errRedirect, errRestored} {
		if errors.Is(err, own) {
			return true
		}
	}
	return errors.As(err, new(apierrors.APIStatus))
}

// doubled doubles a time n times, up to most.
func doubled(first, most time.Duration, n int) time.Duration {
	if n > 20 {
		return most
	}
	return min(first<<n, most)
}

// jitter adds a random part of a time to it, so that nodes do not ask all at
// once.
func jitter(d time.Duration, part float64) time.Duration {
	return d + time.Duration(rand.Float64()*part*float64(d))
}
