package watch

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// How long to wait between requests of one kind of objects that fail. A server
// that does not answer is asked often, which costs it nothing and lets changes
// arrive within a second of its return. One that answers with an error is asked
// quickly at first, since errors are short while a server starts, and then ever
// more slowly: thousands of nodes ask it.
const (
	deafFirst, deafMost       = 50 * time.Millisecond, 500 * time.Millisecond
	refusedFirst, refusedMost = 100 * time.Millisecond, 30 * time.Second
	longestDelay              = 2 * time.Minute  // that a server may ask for
	absentDelay               = 10 * time.Minute // for what a server does not have or show, and we can do without
)

// startRefusals is how often in a row a server that starts may refuse what it
// will allow once it has read its own rules: for about three seconds.
const startRefusals = 5

// steadyTime is how long a stream must have lasted to count as a success.
const steadyTime = time.Second

// pace says how long to wait after a request. The zero value is ready.
type pace struct {
	deaf, refused int // failures since the last success: without an answer, with one
}

// worked notes a success.
func (p *pace) worked() { *p = pace{} }

// after returns how long to wait after a failure.
func (p *pace) after(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		p.refused++
		return jitter(min(time.Duration(seconds)*time.Second, longestDelay), 0.2)
	}
	if answered(err) {
		p.refused++
		return jitter(grown(refusedFirst, refusedMost, p.refused-1), 0.5)
	}
	p.deaf++
	return jitter(grown(deafFirst, deafMost, p.deaf-1), 0.5)
}

// answered reports whether an error is the server's own word, or about what it
// sent.
func answered(err error) bool {
	for _, own := range []error{errShort, errPart, errTooMuch, errRedirect} {
		if errors.Is(err, own) {
			return true
		}
	}
	return errors.As(err, new(apierrors.APIStatus))
}

// grown doubles a time n times, up to most.
func grown(first, most time.Duration, n int) time.Duration {
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

// sleep waits; it ends early when ctx does.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
