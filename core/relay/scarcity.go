package relay

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"time"
)

// scarcity slows accepting down while descriptors or ports have run out: what is
// open shall go on, and clients wait in the listener's queue. It is safe for
// concurrent use.
type scarcity struct {
	until atomic.Int64 // Unix nanoseconds; accept nothing before
}

// breath is how long accepting pauses.
const breath = 50 * time.Millisecond

// lacking reports whether an error says that something has run out on this
// host, and nothing about the other end.
func lacking(err error) bool {
	const wsaMFile, wsaNoBufs, wsaAddrNotAvail = syscall.Errno(10024), syscall.Errno(10055), syscall.Errno(10049) // Windows
	for _, e := range [...]error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, wsaMFile, wsaNoBufs, wsaAddrNotAvail,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Absent reports whether an error says that an address to listen on is not, or
// not yet, one of this host.
func Absent(err error) bool {
	const wsaAddrNotAvail = syscall.Errno(10049)
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, wsaAddrNotAvail)
}

// notice starts a pause. It reports whether that is news.
func (s *scarcity) notice(now time.Time) bool {
	return s.until.Swap(now.Add(breath).UnixNano()) == 0
}

// pass waits until there may be enough again.
func (s *scarcity) pass(ctx context.Context) {
	if until := s.until.Load(); until != 0 {
		if wait := time.Until(time.Unix(0, until)); wait > 0 {
			sleep(ctx, wait)
		} else {
			s.until.CompareAndSwap(until, 0)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
