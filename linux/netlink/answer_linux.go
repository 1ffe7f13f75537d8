// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"

	"golang.org/x/sys/unix"
)

// Result returns the error that a message of TypeError or TypeDone carries, nil for
// success.
func (m Message) Result() error {
	errno, ok := m.Errno()
	switch {
	case !ok:
		return ErrMalformed
	case errno == 0:
		return nil
	}
	return unix.Errno(errno)
}

// answers calls each for the answers to the request with that sequence number: one,
// or, if there are many, all up to the end of a dump or the acknowledgement. end is the result in the last message; err states
// that the last message was not reached.
func answers(ctx context.Context, receive func() ([]byte, error), seq uint32, many bool, each func(Message) error) (end, err error) {
	interrupted := false
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := receive()
		if err != nil {
			return nil, err
		}
		for m, err := range Messages(b) {
			if err != nil {
				return nil, err
			}
			if m.Seq != seq {
				continue // of an earlier, abandoned request
			}
			interrupted = interrupted || m.Flags&FlagInterrupted != 0
			if m.Type == TypeDone || m.Type == TypeError {
				return ended(m, interrupted), nil
			}
			if err := each(m); err != nil {
				return nil, err
			}
			if !many {
				return nil, nil
			}
		}
	}
}

// ended returns the result of a dump or a request.
func ended(m Message, interrupted bool) error {
	err := m.Result()
	if err == unix.EINTR || err == nil && interrupted {
		return ErrInterrupted
	}
	return err
}

// results calls failed for each of n requests that failed, and answered, unless it is nil, for
// each other message that answers one, until the last request, which alone requests an
// acknowledgement, is done.
func results(receive func() ([]byte, error), first uint32, n int, answered func(i int, m Message), failed func(i int, err error)) error {
	for {
		b, err := receive()
		if err != nil {
			return err
		}
		for m, err := range Messages(b) {
			if err != nil {
				return err
			}
			i := m.Seq - first // also right when the numbers wrap
			switch {
			case i >= uint32(n): // a late answer to an abandoned batch
				continue
			case m.Type != TypeError:
				if answered != nil {
					answered(int(i), m)
				}
				continue
			}
			if err := m.Result(); err != nil {
				failed(int(i), err)
			}
			if i == uint32(n)-1 {
				return nil
			}
		}
	}
}
