// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// message is a message of the kernel with a number in its body.
func message(kind, flags uint16, seq uint32, number int32) []byte {
	w := &Writer{}
	w.Begin(kind, flags, seq, 0, 0)
	w.Buf = binary.NativeEndian.AppendUint32(w.Buf[:HeaderLen], uint32(number))
	w.End()
	return w.Buf
}

// receiver returns chunks and then an error.
func receiver(end error, chunks ...[]byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		if len(chunks) == 0 {
			return nil, end
		}
		b := chunks[0]
		chunks = chunks[1:]
		return b, nil
	}
}

func TestAnswers(t *testing.T) {
	const entry = 0x100
	stop := errors.New("stop")
	one, done := message(entry, 2, 5, 0), message(TypeDone, 2, 5, 0)
	for _, c := range []struct {
		name     string
		chunks   [][]byte
		entries  int
		end, err error
	}{
		{"two chunks", [][]byte{append(message(entry, 2, 5, 0), one...), done}, 2, nil, nil},
		{"left-overs of an older dump", [][]byte{message(entry, 2, 4, 0), message(TypeDone, 2, 4, 0), one, done}, 1, nil, nil},
		{"interrupted", [][]byte{message(entry, 2|FlagInterrupted, 5, 0), done}, 1, ErrInterrupted, nil},
		{"interrupted, as an error", [][]byte{message(TypeDone, 2, 5, -int32(unix.EINTR))}, 0, ErrInterrupted, nil},
		{"rejected", [][]byte{message(TypeError, 0, 5, -int32(unix.EOPNOTSUPP))}, 0, unix.EOPNOTSUPP, nil},
		{"cut off", [][]byte{one[:18]}, 0, nil, ErrMalformed},
		{"bytes behind", [][]byte{append(message(entry, 2, 5, 0), 1, 2, 3)}, 1, nil, ErrMalformed},
		{"receive fails", [][]byte{one}, 1, nil, stop},
	} {
		entries := 0
		end, err := answers(t.Context(), receiver(stop, c.chunks...), 5, true, func(Message) error { entries++; return nil })
		if entries != c.entries || !errors.Is(end, c.end) || !errors.Is(err, c.err) {
			t.Errorf("%s: %d entries, %v, %v", c.name, entries, end, err)
		}
	}
	_, err := answers(t.Context(), receiver(nil, one), 5, true, func(Message) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("a caller that stops: %v", err)
	}
}

func TestResults(t *testing.T) {
	failed := map[int]error{}
	first := ^uint32(0) - 1
	answers := [][]byte{
		message(TypeError, 0, first-1, -int32(unix.EPERM)), // of an earlier batch
		append(message(TypeError, 0, first+1, -int32(unix.ENOENT)), message(TypeError, 0, first+2, -int32(unix.EBUSY))...),
		message(TypeError, 0, first+3, 0),
	}
	err := results(receiver(ErrNoAnswer, answers...), first, 4, nil, func(i int, err error) { failed[i] = err })
	if err != nil || len(failed) != 2 || failed[1] != unix.ENOENT || failed[2] != unix.EBUSY {
		t.Errorf("%v, %v", failed, err)
	}
	if err := results(receiver(ErrNoAnswer, answers[1]), first, 4, nil, func(int, error) {}); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("no acknowledgement: %v", err)
	}
}

func open(t *testing.T) *Socket {
	t.Helper()
	s, err := Open()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skipf("this kernel has no netfilter: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A request that the kernel ignores is given up at once.
func TestNoAnswer(t *testing.T) {
	s := open(t)
	if err := s.Request(t.Context(), TypeDone, 0, 0, nil, nil); !errors.Is(err, ErrNoAnswer) { // no request: ignored
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Request(ctx, TypeDone, 0, 0, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// Only messages of the kernel are read:  no other process can put answers into the queue.
func TestOnlyTheKernelAnswers(t *testing.T) {
	s := open(t)
	local, err := unix.Getsockname(s.fd)
	if err != nil {
		t.Fatal(err)
	}
	other, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	if err := unix.Sendto(other, message(TypeDone, 0, s.seq+1, 0), 0, local); err == nil {
		t.Error("another process could send")
	}
	if _, err := s.Receive(); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("received: %v", err)
	}
}
