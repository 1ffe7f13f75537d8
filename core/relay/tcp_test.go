// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

func TestTurns(t *testing.T) { eachWay(t, turns) }

func turns(t *testing.T, start starter) {
	s := start(t, Options{})
	a, b, c := named(t), named(t), named(t)
	r := listen(t, s, model.TCP, balance(a.at, b.at, c.at))
	seen := map[string]int{}
	for range 30 {
		name, err := who(t, r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		seen[name]++
	}
	for _, b := range []*backend{a, b, c} {
		if seen[b.at.String()] != 10 {
			t.Errorf("not an even share: %v", seen)
		}
	}
}

// A refused connection goes to the next endpoint; the client is refused only when all
// refuse, and then by a reset.
func TestRetry(t *testing.T) { eachWay(t, retry) }

func retry(t *testing.T, start starter) {
	s := start(t, Options{})
	good := named(t)
	r := listen(t, s, model.TCP, balance(closedPort(t), good.at, closedPort(t)))
	for range 6 {
		if name, err := who(t, r.Addr()); err != nil || name != good.at.String() {
			t.Errorf("got %q, %v", name, err)
		}
	}
	if st := s.Stats(); st.Retried == 0 || st.Failed != 0 {
		t.Errorf("%+v", st)
	}
	r.Update(balance(closedPort(t)))
	if name, err := who(t, r.Addr()); err == nil {
		t.Errorf("got %q of nobody", name)
	}
	if st := s.Stats(); st.Failed != 1 {
		t.Errorf("%+v", st)
	}
}

func TestStickyMovesOnlyWhenItMust(t *testing.T) { eachWay(t, stickyMovesOnlyWhenItMust) }

func stickyMovesOnlyWhenItMust(t *testing.T, start starter) {
	s := start(t, Options{})
	a, b := named(t), named(t)
	p := balance(a.at, b.at)
	p.SessionAffinity = time.Hour
	r := listen(t, s, model.TCP, p)
	first, err := who(t, r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if name, err := who(t, r.Addr()); name != first {
			t.Errorf("%s after %s (%v)", name, first, err)
		}
	}
	gone, stays := a, b
	if first == b.at.String() {
		gone, stays = b, a
	}
	gone.close() // the endpoint is still in the policy, but refuses
	for range 10 {
		if name, err := who(t, r.Addr()); name != stays.at.String() {
			t.Errorf("got %q, %v", name, err)
		}
	}
}

// Each side may stop talking and go on listening.
func TestHalfClose(t *testing.T) { eachWay(t, halfClose) }

func halfClose(t *testing.T, start starter) {
	s := start(t, Options{})
	sum := newBackend(t, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c) // until the client has ended its half
		io.WriteString(c, "heard "+string(all))
	})
	r := listen(t, s, model.TCP, balance(sum.at))
	c := dial(t, r.Addr())
	io.WriteString(c, "a long story")
	c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "heard a long story" {
		t.Errorf("got %q, %v", got, err)
	}

	quiet := newBackend(t, func(c *net.TCPConn) {
		c.CloseWrite() // this end first
		io.Copy(io.Discard, c)
	})
	r.Update(balance(quiet.at))
	c = dial(t, r.Addr())
	if got, err := io.ReadAll(c); len(got) != 0 || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := io.WriteString(c, "still here"); err != nil {
		t.Error(err)
	}
}

// A reset is passed on as one, in both directions.
func TestResets(t *testing.T) { eachWay(t, resets) }

func resets(t *testing.T, start starter) {
	s := start(t, Options{})
	broken := make(chan error, 1)
	b := newBackend(t, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		broken <- err
	})
	r := listen(t, s, model.TCP, balance(b.at))
	c := dial(t, r.Addr())
	io.WriteString(c, "x")
	eventually(t, "open", func() error {
		if s.Stats().Open != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	reset(c)
	if err := <-broken; err == nil {
		t.Error("the endpoint took a reset for an end")
	}

	rude := newBackend(t, func(c *net.TCPConn) {
		c.Read(make([]byte, 1))
		reset(c)
	})
	r.Update(balance(rude.at))
	c = dial(t, r.Addr())
	io.WriteString(c, "x")
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the client took a reset for an end: %v", err)
	}
}

// What is sent arrives, in both directions at once, in pieces of all sizes and
// with pauses, in which the kernel's pipe is given back.
func TestTransferIsWhole(t *testing.T) {
	eachWay(t, func(t *testing.T, start starter) { wholeTransfer(t, start(t, Options{})) })
	t.Run("portable", func(t *testing.T) {
		s := newGoroutines(t, Options{})
		s.newStream = newBufferedStream
		wholeTransfer(t, s)
	})
}

func wholeTransfer(t *testing.T, s *Server) {
	r := listen(t, s, model.TCP, balance(echo(t).at))
	size := 48 << 20
	if testing.Short() {
		size = 12 << 20
	}
	var clients sync.WaitGroup
	for n := range 3 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			data := make([]byte, size)
			for i := 0; i < size; i += 8 {
				data[i] = byte(rng.Uint32())
			}
			c := dial(t, r.Addr())
			var sent sync.WaitGroup
			sent.Go(func() {
				for rest := data; len(rest) > 0; {
					n := min(1+rng.IntN(1<<(4+rng.IntN(19))), len(rest))
					if _, err := c.Write(rest[:n]); err != nil {
						t.Error(err)
						return
					}
					rest = rest[n:]
					if rng.IntN(40) == 0 && len(rest) > size/2 {
						time.Sleep(time.Millisecond)
					}
				}
				time.Sleep(maxPause + maxPause/5)
				c.Write([]byte("the end"))
				c.CloseWrite()
			})
			h := sha256.New()
			if n, err := io.Copy(h, c); err != nil || n != int64(size+7) {
				t.Errorf("%d bytes of %d: %v", n, size+7, err)
			}
			sent.Wait()
			want := sha256.Sum256(append(data, "the end"...))
			if !bytes.Equal(h.Sum(nil), want[:]) {
				t.Error("the answer is not the request")
			}
		})
	}
	clients.Wait()
}

func TestPolicyDecides(t *testing.T) { eachWay(t, policyDecides) }

func policyDecides(t *testing.T, start starter) {
	from := model.FromPod
	var mu sync.Mutex
	s := start(t, Options{Origin: func(netip.Addr) model.Origin { mu.Lock(); defer mu.Unlock(); return from }})
	a := named(t)
	p := balance(a.at)
	p.On[model.FromHost] = Answer{Verdict: model.Reject}
	r := listen(t, s, model.TCP, p)
	want := func(served bool) {
		t.Helper()
		if name, err := who(t, r.Addr()); (name == a.at.String()) != served || served != (err == nil) {
			t.Errorf("got %q, %v; want served %t", name, err, served)
		}
	}
	want(true)
	mu.Lock()
	from = model.FromHost
	mu.Unlock()
	want(false)
	p.On[model.FromHost] = p.On[model.FromPod]
	p.Restricted, p.Allow = true, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	r.Update(p)
	want(false)
	p.Allow = append(p.Allow, netip.MustParsePrefix("127.0.0.0/8"))
	r.Update(p)
	want(true)
}

// A relay that goes takes no more clients and cuts none.
func TestRelayCloseDrains(t *testing.T) { eachWay(t, relayCloseDrains) }

func relayCloseDrains(t *testing.T, start starter) {
	s := start(t, Options{})
	r := listen(t, s, model.TCP, balance(echo(t).at))
	c := dial(t, r.Addr())
	say := func(text string) {
		t.Helper()
		got := make([]byte, len(text))
		io.WriteString(c, text)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
			t.Errorf("got %q, %v", got, err)
		}
	}
	say("one")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	say("two")
	if c, err := net.Dial("tcp", r.Addr().String()); err == nil {
		t.Error("a relay that is closed takes clients")
		c.Close()
	}
	if err := r.Close(); err != nil {
		t.Error("a second Close:", err)
	}
}

// A server that ends waits for connections, for so long.
func TestServerCloseHasGrace(t *testing.T) { eachWay(t, serverCloseHasGrace) }

func serverCloseHasGrace(t *testing.T, start starter) {
	s := start(t, Options{})
	r := listen(t, s, model.TCP, balance(echo(t).at))
	polite, idle := dial(t, r.Addr()), dial(t, r.Addr())
	for _, c := range []net.Conn{polite, idle} {
		io.WriteString(c, "x")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		polite.Close()
	}()
	if err := s.Close(100 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Open != 0 {
		t.Errorf("%+v", st)
	}
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlived its server")
	}
	if _, err := s.Listen(model.TCP, anyPort, Policy{}); !errors.Is(err, ErrClosed) {
		t.Errorf("listening on a closed server: %v", err)
	}
}
