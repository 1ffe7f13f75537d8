package relay

import (
	"context"
	"sync"
)

// slots are how many connections there is room for: each needs two descriptors,
// and accepting one without having the other for its endpoint helps nobody. They
// are safe for concurrent use.
type slots struct {
	most int // 0 is no limit

	mu    sync.Mutex
	used  int
	freed chan struct{} // closed when a slot is freed; nil while nobody waits
}

// share is what one Relay holds of the slots, whose mu guards it.
type share struct {
	held    int
	waiting bool // for more than it may have
}

// room is how many slots a limit on descriptors leaves, with a reserve for the rest
// of the process; 0 is no limit.
func room(descriptors int) int {
	if descriptors <= 0 {
		return 0
	}
	reserve := 64 + descriptors/8
	return max(1, (descriptors-reserve)/2)
}

// try takes a slot for a relay if it may have one more. A relay may hold as many as
// it leaves free: alone it gets half of all, n relays that want all get one of n+1
// parts each, and for one more there is always room (dynamic thresholds, as in
// switches with shared buffers: Choudhury and Hahne, 1998).
func (s *slots) try(by *share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grant(by)
}

func (s *slots) grant(by *share) bool {
	if s.most > 0 && by.held >= s.most-s.used {
		return false
	}
	s.used++
	by.held++
	by.waiting = false
	return true
}

// take waits for a slot. It is false at the end of ctx.
func (s *slots) take(ctx context.Context, by *share) bool {
	for {
		s.mu.Lock()
		if s.grant(by) {
			s.mu.Unlock()
			return true
		}
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

// waits notes that a relay has to wait, and reports whether that is news, how many
// slots it holds and how many there are.
func (s *slots) waits(by *share) (news bool, held, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news, by.waiting = !by.waiting, true
	return news, by.held, s.most
}

func (s *slots) free(by *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	by.held--
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}
