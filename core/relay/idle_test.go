// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// An idle connection is reset at both ends; one with data now and then continues.
func TestIdleTimeout(t *testing.T) { eachWay(t, idleTimeout) }

func idleTimeout(t *testing.T, start starter) {
	s := start(t, Options{TCP: Timeouts{Idle: time.Second}})
	ended := make(chan error, 2)
	b := newBackend(t, func(c *net.TCPConn) {
		_, err := io.Copy(c, c)
		ended <- err
	})
	r := listen(t, s, model.TCP, balance(b.at))
	idle, busy := dial(t, r.Addr()), dial(t, r.Addr())
	says(t, idle)
	for begin := time.Now(); s.Stats().IdleTimeouts == 0 && time.Since(begin) < 10*time.Second; time.Sleep(50 * time.Millisecond) {
		says(t, busy)
	}
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client of an idle connection got %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the endpoint of an idle connection got no reset")
	}
	says(t, busy)
	if st := s.Stats(); st.IdleTimeouts != 1 || st.HalfClosedTimeouts != 0 || st.Open != 1 {
		t.Errorf("%+v", st)
	}
}

// A connection that one side has closed is reset some time after its last data,
// whichever side it was; an open one with as little data is not.
func TestHalfClosedTimeout(t *testing.T) { eachWay(t, halfClosedTimeout) }

func halfClosedTimeout(t *testing.T, start starter) {
	s := start(t, Options{TCP: Timeouts{HalfClosed: 500 * time.Millisecond}})
	end := make(chan struct{})
	forgets := newBackend(t, func(*net.TCPConn) { <-end })
	defer close(end)
	r := listen(t, s, model.TCP, balance(forgets.at))
	c := dial(t, r.Addr())
	c.CloseWrite()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client that had closed its side got %v", err)
	}
	closes := newBackend(t, func(c *net.TCPConn) { c.CloseWrite(); <-end })
	r.Update(balance(closes.at))
	c = dial(t, r.Addr())
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the endpoint closed its side, the client got %v", err)
	}
	r.Update(balance(echo(t).at))
	open := dial(t, r.Addr())
	says(t, open)
	eventually(t, "both half-closed connections are reset", func() error {
		if st := s.Stats(); st.HalfClosedTimeouts != 2 || st.Open != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	says(t, open)
}

// A slow reader of what the other side has sent before it closed gets all of it,
// though that waits in buffers for longer than the timeout.
func TestHalfClosedSlowReader(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells when data in a socket's buffer was sent")
	}
	eachWay(t, func(t *testing.T, start starter) {
		s := start(t, Options{TCP: Timeouts{HalfClosed: 2 * time.Second}})
		const size = 256 << 10
		b := newBackend(t, func(c *net.TCPConn) { c.Write(make([]byte, size)) })
		c := dial(t, listen(t, s, model.TCP, balance(b.at)).Addr())
		c.SetReadBuffer(8 << 10)
		total := 0
		for buf := make([]byte, 32<<10); ; time.Sleep(300 * time.Millisecond) {
			n, err := io.ReadFull(c, buf)
			if total += n; err != nil {
				break
			}
		}
		if st := s.Stats(); total != size || st.HalfClosedTimeouts != 0 {
			t.Errorf("%d of %d bytes, %+v", total, size, st)
		}
	})
}

// fakeConnection states how long it has been silent.
type fakeConnection struct {
	by   *share
	idle time.Duration
	half bool
	end  bool
}

func (f *fakeConnection) share() *share                            { return f.by }
func (f *fakeConnection) activity(time.Time) (time.Duration, bool) { return f.idle, f.half }
func (f *fakeConnection) reset()                                   { f.end = true }

// Timeouts are short for a Service port whose clients wait for slots, and for that
// one only.
func TestTimeoutsOfLimitedShares(t *testing.T) {
	s := newServer(t, Options{})
	limited, other := &share{}, &share{}
	for _, test := range []struct {
		fakeConnection
		want bool
	}{
		{fakeConnection{by: other, idle: 24 * time.Hour}, true},
		{fakeConnection{by: other, idle: 24*time.Hour - 1}, false},
		{fakeConnection{by: other, idle: time.Hour, half: true}, true},
		{fakeConnection{by: other, idle: time.Hour - 1, half: true}, false},
		{fakeConnection{by: limited, idle: time.Hour}, true},
		{fakeConnection{by: limited, idle: time.Hour - 1}, false},
		{fakeConnection{by: limited, idle: time.Minute, half: true}, true},
		{fakeConnection{by: limited, idle: time.Minute - 1, half: true}, false},
	} {
		c := test.fakeConnection
		s.expire([]connection{&c}, map[*share]bool{limited: true}, time.Now())
		if c.end != test.want {
			t.Errorf("idle %v, half-closed %t, limited %t: reset %t", c.idle, c.half, c.by == limited, c.end)
		}
	}
}

// Other modes have a server for node ports on loopback, most often without a relay: it
// must not raise the heap at which garbage is collected.
func TestBallastIsForRelays(t *testing.T) {
	s := NewServer(Options{Log: slog.New(slog.DiscardHandler)})
	defer s.Close(0)
	has := func(want bool) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if (s.ballast != nil) != want {
			t.Errorf("%d relays, ballast of %d bytes", len(s.relays), len(s.ballast))
		}
	}
	has(false)
	for range 2 {
		r, err := s.Listen(model.TCP, netip.MustParseAddrPort("127.0.0.1:0"), Policy{})
		if err != nil {
			t.Fatal(err)
		}
		has(true)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		has(false)
	}
}
