// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// slots limit the open connections and sessions. Each connection needs two
// descriptors: a client is only accepted if there is one for its endpoint, too. They
// are safe for concurrent use.
type slots struct {
	limit int // 0 is no limit

	mu      sync.Mutex
	used    int
	freed   chan struct{}       // closed when a slot is freed; nil while no client waits
	limited map[*share]struct{} // shares that lacked a slot; see recent
	tenants map[string]*holding // that hold some, by namespace
	holders indexed[*holding]   // those with shares that can give a slot way, and hold some
}

// holding is what the shares of a namespace hold, together: however many Service ports it has, it has no more room.
type holding struct {
	held   int             // by all of its shares
	gives  int             // of that, by those that can give way
	shares indexed[*share] // the latter, that hold some
	place  int             // in slots.holders, while it is there
}

// share is what one Relay holds of the slots, whose mu guards it.
type share struct {
	port    model.PortID
	taken   atomic.Uint64 // TCP connections and UDP sessions since it listens; not guarded
	giveWay func() bool   // ends the session that is idle longest; false where there is none; nil for TCP. Not guarded
	held    int
	place   int       // in holding.shares, while it is there
	waiting bool      // a client waits for a slot
	lacked  time.Time // when a slot was last lacking
}

// connectionLimit returns how many connections a limit on descriptors allows, with
// a reserve for the rest of the process; 0 is no limit.
func connectionLimit(descriptors int) int {
	if descriptors <= 0 {
		return 0
	}
	reserve := 64 + descriptors/8
	return max(1, (descriptors-reserve)/2)
}

// try takes a slot if the share may grow. A share may hold as many slots as it
// leaves free: alone half of all, n shares that want all 1/(n+1) each, so that one
// more always finds room (dynamic thresholds, as in switches with shared buffers:
// Choudhury and Hahne, 1998). So may all shares of a namespace together.
func (s *slots) try(by *share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.grant(by)
	if !ok {
		s.lack(by)
	}
	return ok
}

func (s *slots) grant(by *share) bool {
	if free := s.limit - s.used; s.limit > 0 && (by.held >= free || s.heldBeside(by) >= free) {
		return false
	}
	s.hold(by, 1)
	return true
}

// heldBeside returns how many slots the namespace of a share holds; 0 for one of no Service. mu is held.
func (s *slots) heldBeside(by *share) int {
	if t := s.tenants[by.port.Service.Namespace]; t != nil && by.port.Service.Namespace != "" {
		return t.held
	}
	return 0
}

// hold changes by how many slots a share holds. mu is held.
func (s *slots) hold(by *share, more int) {
	name := by.port.Service.Namespace
	t := s.tenants[name]
	if t == nil {
		if s.tenants == nil {
			s.tenants = map[string]*holding{}
		}
		t = &holding{}
		s.tenants[name] = t
	}
	s.used += more
	by.held += more
	if t.held += more; t.held == 0 {
		delete(s.tenants, name)
	}
	if by.giveWay == nil {
		return
	}
	keep(&t.shares, by, by.place, by.held, more)
	t.gives += more
	keep(&s.holders, t, t.place, t.gives, more)
}

// keep has something at its place in a heap of what holds slots, once it holds some more.
func keep[T item[T]](all *indexed[T], one T, place, held, more int) {
	switch {
	case held == 0:
		heap.Remove(all, place)
	case held == 1 && more > 0:
		heap.Push(all, one)
	default:
		heap.Fix(all, place)
	}
}

// makeRoom is makeRoomFor a share of no Service.
func (s *slots) makeRoom() bool { return s.makeRoomFor(&share{}) }

// makeRoomFor frees a slot for a share that holds none, and reports whether it did: while old sessions of others hold
// all slots, its clients would be refused until some expire. Of the namespace with the most the share with the most
// gives way. In its own namespace that is only one that has two, so that shares do not take each other's last; and so
// it is with the last of a namespace. It costs O(log n) of n shares.
func (s *slots) makeRoomFor(by *share) bool {
	s.mu.Lock()
	var largest *share
	if len(s.holders) > 0 {
		t := s.holders[0]
		if first := t.shares[0]; first.held > 1 || t.gives > 1 && t != s.tenants[by.port.Service.Namespace] {
			largest = first
		}
	}
	s.mu.Unlock()
	return largest != nil && largest.giveWay()
}

// exceeds reports whether a share has more than it may have, by more than rounding: others
// have grown since.
func (s *slots) exceeds(by *share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.limit - s.used
	return s.limit > 0 && (by.held > free+1 || s.heldBeside(by) > free+1)
}

func (s *slots) lack(by *share) {
	if s.limited == nil {
		s.limited = map[*share]struct{}{}
	}
	s.limited[by] = struct{}{}
	by.lacked = time.Now()
}

// take waits for a slot. It returns false if ctx ends first.
func (s *slots) take(ctx context.Context, by *share) bool {
	for {
		s.mu.Lock()
		if by.waiting = !s.grant(by); !by.waiting {
			s.mu.Unlock()
			return true
		}
		s.lack(by)
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return false
		}
	}
}

func (s *slots) free(by *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold(by, -1)
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// limitedFor is how long a share counts as limited after it last lacked a slot:
// under load each slot that is freed is wanted again, and neither logs nor the
// shorter timeouts should follow every single one.
const limitedFor = time.Minute

// recent returns the shares that are limited, in no order.
func (s *slots) recent(now time.Time) map[*share]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	recent := make(map[*share]bool, len(s.limited))
	for by := range s.limited {
		if !by.waiting && now.Sub(by.lacked) > limitedFor {
			delete(s.limited, by)
			continue
		}
		recent[by] = true
	}
	return recent
}

// before implements item: the namespace with the most slots comes first.
func (t *holding) before(o *holding) bool { return t.gives > o.gives }

func (t *holding) moved(place int) { t.place = place }

// before implements item: the share with the most slots comes first.
func (s *share) before(o *share) bool { return s.held > o.held }

func (s *share) moved(place int) { s.place = place }
