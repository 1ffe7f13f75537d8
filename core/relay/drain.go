package relay

import (
	"context"
	"time"
)

// Retire closes the relay after a while, in which it still takes clients: those
// who are on the way to it, or wait in its queue, when nobody is led there any
// more. It does not wait for that.
func (r *Relay) Retire(after time.Duration) {
	s := r.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // it is closed already
		return
	}
	s.work.Go(func() {
		sleep(s.ctx, after)
		if err := r.Close(); err != nil {
			s.options.Log.Warn("a relay was not closed", "listener", r.at, "error", err)
		}
	})
}

// look is how often Drain looks whether connections have ended.
const look = 20 * time.Millisecond

// Drain waits until nothing listens any more and all TCP connections have ended,
// and resets what is left of them after the grace, or when ctx ends.
func (s *Server) Drain(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for s.busy() {
		if ctx.Err() != nil {
			s.resetAll()
			return
		}
		sleep(ctx, look)
	}
}

func (s *Server) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.relays) > 0 || s.present.Load() > 0
}
