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
	on   atomic.Bool
	news chan struct{} // holds a token after a try, once it is made

	mu   sync.Mutex
	last uint32    // the number of the latest one
	ring []attempt // at most maxAttempts, the latest last
	told uint32    // the number of the last one that New has shown
}

type attempt struct {
	flow     suspect.Flow
	at       time.Time // when it ended
	answered bool
}

const (
	maxAttempts = 512
	// silentFor is how long an attempt counts as one that waits, though the relay has
	// gone on to another endpoint.
	silentFor = 5 * time.Second
)

// note remembers a try of the endpoint that a client is at. Refusal is an answer.
func (a *attempts) note(to *choice, answered bool) {
	if !a.on.Load() {
		return
	}
	port := to.port
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	one := attempt{suspect.Flow{ID: a.last, Client: to.client, Port: &port, Endpoint: to.endpoint()}, time.Now(), answered}
	if len(a.ring) == maxAttempts {
		copy(a.ring, a.ring[1:])
		a.ring = a.ring[:maxAttempts-1]
	}
	a.ring = append(a.ring, one)
	select {
	case a.news <- struct{}{}:
	default: // it is told already, or nobody has asked
	}
}

// Attempts are the latest tries of a Server to reach endpoints. They are remembered
// from the first call on.
type Attempts struct{ *attempts }

// New calls each for the tries that have ended since the last call, with since when the endpoint has been
// asked, and tells whether those are all of them.
func (a *Attempts) New(_ context.Context, each func(f suspect.Flow, s suspect.State, since time.Time)) (all bool, err error) {
	first := !a.on.Swap(true)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.news == nil {
		a.news = make(chan struct{}, 1)
	}
	fresh := min(int(a.last-a.told), len(a.ring))
	all = !first && fresh == int(a.last-a.told)
	for _, one := range a.ring[len(a.ring)-fresh:] {
		if one.answered {
			each(one.flow, suspect.Answered, one.at)
		} else {
			each(one.flow, suspect.Waiting, one.at.Add(-dialTimeouts[0]))
		}
	}
	a.told = a.last
	return all, nil
}

// States calls each for tries that had no answer, by their place. They count as ones that wait for
// some seconds.
func (a *Attempts) States(_ context.Context, flows []suspect.Flow, each func(i int, s suspect.State)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, f := range flows {
		state := suspect.Gone
		if back := int(a.last - f.ID); back < len(a.ring) && time.Since(a.ring[len(a.ring)-1-back].at) < silentFor {
			state = suspect.Waiting
		}
		each(i, state)
	}
	return nil
}

// Prior returns nothing: of earlier tries nothing is known.
func (*Attempts) Prior(context.Context, func(netip.Addr) bool, int) ([]netip.AddrPort, []suspect.Flow, error) {
	return nil, nil, nil
}

// Wait waits until a try has ended since the last New, or before it, or ctx ends.
func (a *Attempts) Wait(ctx context.Context) {
	a.mu.Lock()
	news := a.news
	a.mu.Unlock()
	select {
	case <-news:
	case <-ctx.Done():
	}
}

// Spent is 0: looking costs next to nothing.
func (*Attempts) Spent() time.Duration { return 0 }

// dialTimeouts limit each attempt to reach an endpoint. After a refusal the next
// endpoint is tried at once.
var dialTimeouts = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
