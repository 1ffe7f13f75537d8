// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// caller is a connection from an address that is closed or not.
type caller struct {
	net.Conn
	from   netip.AddrPort
	closed bool
}

func (c *caller) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.from) }
func (c *caller) Close() error         { c.closed = true; return nil }

func callers(w *connLimiter, from string, n int) (all []*caller, conns []*conn) {
	for range n {
		c := &caller{from: netip.AddrPortFrom(netip.MustParseAddr(from), 4000)}
		all, conns = append(all, c), append(conns, w.add(c, nil))
	}
	return all, conns
}

func open(all []*caller) (n int) {
	for _, c := range all {
		if !c.closed {
			n++
		}
	}
	return n
}

// One address has all connections, and a request under way on each. What others need is
// taken from it, and from it alone.
func TestConnectionsAreSharedByAddress(t *testing.T) {
	for name, c := range map[string]struct{ hostile, again string }{
		"IPv4":             {"10.244.1.6", "10.244.1.6"},
		"IPv6, a network":  {"2001:db8::1", "2001:db8::beef"},
		"loopback":         {"127.0.0.1", "127.9.9.9"},
		"IPv4 within IPv6": {"::ffff:10.244.1.6", "10.244.1.6"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &connLimiter{max: maxConns}
			all, conns := callers(w, c.hostile, maxConns)
			for _, one := range conns {
				one.answering(true)
			}
			friends, _ := callers(w, "192.0.2.7", 10)
			more, others := callers(w, c.again, 10)
			for _, one := range others {
				if one != nil {
					one.answering(true)
				}
			}
			later, _ := callers(w, "192.0.2.8", 1)
			if n := open(friends); n != 10 {
				t.Errorf("%d of 10 connections of another address", n)
			}
			if n := open(later); n != 1 {
				t.Error("the last one has no connection")
			}
			if n := open(all) + open(more); n != maxConns-11 {
				t.Errorf("the hostile address has %d", n)
			}
			if w.all.Len() != maxConns {
				t.Errorf("%d connections", w.all.Len())
			}
		})
	}
}

// An address does not take a connection from another that has no more than itself.
func TestEqualSharesStay(t *testing.T) {
	w := &connLimiter{max: 4}
	a, as := callers(w, "192.0.2.1", 2)
	b, bs := callers(w, "192.0.2.2", 2)
	for _, c := range append(as, bs...) {
		c.answering(true)
	}
	more, _ := callers(w, "192.0.2.1", 1)
	if open(a) != 2 || open(b) != 2 || open(more) != 0 {
		t.Errorf("%d and %d of 2, %d more", open(a), open(b), open(more))
	}
}

// A client that does not read is given up after some seconds, one that reads slowly is not.
func TestAnswersMakeProgress(t *testing.T) {
	for name, c := range map[string]struct {
		pause time.Duration
		want  error
	}{
		"reads": {stallTimeout / 2, nil}, "reads nothing": {time.Hour, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				w := &connLimiter{max: 1}
				one := w.add(near, nil)
				if err := one.SetWriteDeadline(time.Now().Add(answerTimeout)); err != nil {
					t.Fatal(err)
				}
				ctx := t.Context()
				go func() {
					for {
						select {
						case <-time.After(c.pause):
						case <-ctx.Done():
							return
						}
						if _, err := io.CopyN(io.Discard, far, writeStep); err != nil {
							return
						}
					}
				}()
				start := time.Now()
				n, err := one.Write(make([]byte, 4*writeStep))
				if !errors.Is(err, c.want) || err == nil && n != 4*writeStep {
					t.Errorf("wrote %d: %v", n, err)
				}
				if took := time.Since(start); err != nil && took != stallTimeout {
					t.Errorf("given up after %s", took)
				}
				one.Close()
				far.Close()
			})
		})
	}
}

// However fast a client reads, an answer has its time.
func TestAnswersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		w := &connLimiter{max: 1}
		one := w.add(near, nil)
		_ = one.SetWriteDeadline(time.Now().Add(2 * time.Second))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, slow{far})
		}()
		start := time.Now()
		if _, err := one.Write(make([]byte, 64*writeStep)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 2*time.Second {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		one.Close()
		far.Close()
		<-ended // time stands still once this function returns
	})
}

// slow is a reader of one step a second.
type slow struct{ io.Reader }

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return io.ReadFull(s.Reader, p[:min(len(p), writeStep)])
}
