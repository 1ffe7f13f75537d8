// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/suspect"
)

// attempts remember the latest tries to reach endpoints, for core/suspect, once a caller
// has asked for them. They are safe for concurrent use.
type attempts struct {
	on atomic.Bool

	mu               sync.Mutex
	last             uint64
	silent, answered []attempt // rings of at most maxAttempts
}

type attempt struct {
	flow suspect.Flow
	at   time.Time
}

const (
	maxAttempts = 256
	// silentFor is how long an attempt counts as one that waits, though the relay has
	// gone on to another endpoint.
	silentFor = 5 * time.Second
)

// note remembers a try of the endpoint that a client is at. Refusal is an answer.
func (a *attempts) note(to *choice, answered bool) {
	if !a.on.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ring := &a.silent
	if answered {
		ring = &a.answered
	}
	a.last++
	one := attempt{suspect.Flow{ID: a.last, Client: to.client.Addr(), Port: to.port, Endpoint: to.endpoint()}, time.Now()}
	if len(*ring) == maxAttempts {
		copy(*ring, (*ring)[1:])
		(*ring)[maxAttempts-1] = one
		return
	}
	*ring = append(*ring, one)
}

// Observed is implemented by backends with relays: it shows which endpoints answer.
type Observed interface{ Attempts() *Attempts }

// Attempts are the latest tries of a Server to reach endpoints. They are remembered
// from the first call on.
type Attempts struct{ *attempts }

// Unanswered calls each for the tries of the last seconds that had no answer.
func (a *Attempts) Unanswered(_ context.Context, each func(suspect.Flow)) error {
	a.on.Store(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.silent {
		if age := time.Since(one.at); age < silentFor {
			one.flow.Waited = age + dialTimeouts[0]
			each(one.flow)
		}
	}
	return nil
}

// Answered calls each for the tries that an address has answered.
func (a *Attempts) Answered(_ context.Context, addr netip.Addr, each func(suspect.Flow)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.answered {
		if one.flow.Endpoint.Addr() == addr {
			each(one.flow)
		}
	}
	return nil
}

// AnySeen reports whether any try was answered.
func (a *Attempts) AnySeen(context.Context) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.answered) > 0, nil
}

// Spent is 0: looking costs next to nothing.
func (*Attempts) Spent() time.Duration { return 0 }

// dialTimeouts limit each attempt to reach an endpoint. After a refusal the next
// endpoint is tried at once.
var dialTimeouts = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
