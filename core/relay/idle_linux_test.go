// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// A slow reader of what the other side has sent before it closed is not idle while that
// waits in buffers, and gets all of it: Linux tells when data in a socket's buffer was sent.
func TestHalfClosedSlowReader(t *testing.T) {
	eachWay(t, func(t *testing.T, start starter) {
		s := start(t, Options{})
		const size = 256 << 10
		b := newBackend(t, func(c *net.TCPConn) { c.Write(make([]byte, size)) })
		c := dialSmall(t, listen(t, s, model.TCP, balance(b.at)).Addr())
		read, halves, before := 0, 0, time.Now()
		for buf := make([]byte, 16<<10); ; { // the client's buffer has no more
			time.Sleep(100 * time.Millisecond)
			last := before
			before = time.Now()
			n, err := io.ReadFull(c, buf)
			if read += n; err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%d bytes, %v", read, err)
			}
			idle, half := activity(t, s)
			if limit := time.Since(last) + idleGrain; idle > limit {
				t.Errorf("after %d bytes: idle for %s, data was sent at most %s ago", read, idle, limit)
			}
			if half {
				halves++
			}
		}
		if read != size || halves < 4 {
			t.Errorf("%d of %d bytes; half-closed in %d reads", read, size, halves)
		}
	})
}

// dialSmall is a dial with a small buffer, and with segments that are smaller. With those
// of loopback, larger than the buffer, the other side would send only when its persist
// timer fires, which backs off.
func dialSmall(t *testing.T, at netip.AddrPort) net.Conn {
	t.Helper()
	set := func(fd uintptr) error {
		return errors.Join(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 8<<10),
			syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 1000))
	}
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = set(fd) }), err)
	}}
	c, err := d.DialContext(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
