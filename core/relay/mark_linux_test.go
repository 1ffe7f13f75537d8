// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

const someMark = 1 << 14

// needMarks skips a test where this process may not mark packets.
func needMarks(t *testing.T) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := setMark(fd, someMark); errors.Is(err, syscall.EPERM) {
		t.Skipf("no marks here: %v", err)
	}
}

func markOf(t *testing.T, c syscall.Conn) (mark int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		failed := raw.Control(func(fd uintptr) {
			mark, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_MARK)
		})
		err = errors.Join(err, failed)
	}
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

// Whichever way an endpoint is reached, its packets have the mark, or none where
// none is wanted.
func TestPacketsToEndpointsAreMarked(t *testing.T) {
	needMarks(t)
	endpoint := echo(t).at
	for _, mark := range []uint32{0, someMark, 1 << 31} {
		s := newServer(t, Options{Mark: mark})
		tcp, err := s.dialTCP(endpoint, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		udp, in, err := s.dialUDP(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		in.done()
		defer udp.Close()
		for what, c := range map[string]syscall.Conn{"TCP": tcp, "UDP": udp} {
			if got := uint32(int32(markOf(t, c))); got != mark {
				t.Errorf("%s: mark %#x, want %#x", what, got, mark)
			}
		}
		fd, err := startConnect(endpoint, mark)
		if err != nil {
			t.Fatal(err)
		}
		defer closeSocket(fd)
		if got, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_MARK); uint32(int32(got)) != mark || err != nil {
			t.Errorf("a loop: mark %#x, want %#x (%v)", got, mark, err)
		}
	}
}

// A server with a mark serves as any other.
func TestMarkedServer(t *testing.T) {
	needMarks(t)
	eachWay(t, func(t *testing.T, start starter) {
		s := start(t, Options{Mark: someMark})
		b := named(t)
		r := listen(t, s, model.TCP, balance(b.at))
		if got, err := who(t, r.Addr()); got != b.at.String() {
			t.Errorf("%q, %v", got, err)
		}
		at, _ := names(t)
		if got := newAsker(t, listen(t, s, model.UDP, balance(at)).Addr()).must(t); got != at {
			t.Errorf("%s answers", got)
		}
	})
}
