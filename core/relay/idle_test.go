// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// An idle connection is reset at both ends.
func TestIdleTimeout(t *testing.T) { eachWay(t, idleTimeout) }

func idleTimeout(t *testing.T, start starter) {
	s := start(t, Options{TCP: Timeouts{Idle: time.Second}})
	ended := make(chan error, 1)
	b := newBackend(t, func(c *net.TCPConn) {
		_, err := io.Copy(c, c)
		ended <- err
	})
	c := dial(t, listen(t, s, model.TCP, balance(b.at)).Addr())
	says(t, c)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client of an idle connection got %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the endpoint of an idle connection got no reset")
	}
	eventually(t, "the connection is counted", func() error {
		if st := s.Stats(); st.IdleTimeouts != 1 || st.HalfClosedTimeouts != 0 || st.Open != 0 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// A connection is idle since its last data, and not longer.
func TestIdleTime(t *testing.T) {
	eachWay(t, func(t *testing.T, start starter) {
		s := start(t, Options{})
		c := dial(t, listen(t, s, model.TCP, balance(echo(t).at)).Addr())
		for range 5 {
			before := time.Now()
			says(t, c)
			idle, half := activity(t, s)
			if limit := time.Since(before) + idleGrain; idle > limit || half {
				t.Errorf("idle for %s, half-closed %t; there was data at most %s ago", idle, half, limit)
			}
			time.Sleep(100 * time.Millisecond)
			if idle, _ := activity(t, s); idle < 100*time.Millisecond-idleGrain {
				t.Errorf("idle for %s after 100 ms without data", idle)
			}
		}
	})
}

// idleGrain is how exactly the kernel knows when data was sent: two of its ticks.
const idleGrain = 20 * time.Millisecond

// activity is that of the one connection of a server, once it is open.
func activity(t *testing.T, s *Server) (idle time.Duration, halfClosed bool) {
	t.Helper()
	all := s.connections()
	if len(all) != 1 {
		t.Fatalf("%d connections, want one", len(all))
	}
	return all[0].activity(time.Now())
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
