// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// byGoroutines is how many connections goroutines serve.
func (s *Server) byGoroutines() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// What takes no waiting stays in the loops. A client that does not read is
// given to goroutines, and gets all in the end.
func TestLoopsGiveWhatTakesWaiting(t *testing.T) {
	s := newServer(t, Options{})
	r := listen(t, s, model.TCP, balance(echo(t).at))
	for range 50 {
		says(t, dial(t, r.Addr()))
	}
	if n := s.byGoroutines(); n != 0 {
		t.Errorf("%d of 50 quiet connections have goroutines", n)
	}

	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	much := newBackend(t, func(c *net.TCPConn) { c.Write(data) })
	r.Update(balance(much.at))
	c := dial(t, r.Addr())
	eventually(t, "goroutines wait for the client", func() error {
		if n := s.byGoroutines(); n != 1 {
			return fmt.Errorf("%d connections have some", n)
		}
		return nil
	})
	if st := s.Stats(); st.Open != 51 {
		t.Errorf("%+v", st)
	}
	h := sha256.New()
	if n, err := io.Copy(h, c); err != nil || !bytes.Equal(h.Sum(nil), sum(data)) {
		t.Errorf("%d of %d bytes came, %v", n, len(data), err)
	}
}

func sum(data []byte) []byte {
	h := sha256.Sum256(data)
	return h[:]
}

// A half that has ended stays so when goroutines take over the other.
func TestLoopsGiveHalf(t *testing.T) {
	s := newServer(t, Options{})
	data := make([]byte, 8<<20)
	b := newBackend(t, func(c *net.TCPConn) {
		io.Copy(io.Discard, c) // until the client has ended its half
		c.Write(data)
	})
	c := dial(t, listen(t, s, model.TCP, balance(b.at)).Addr())
	io.WriteString(c, "x")
	c.CloseWrite()
	if n, err := io.Copy(io.Discard, c); n != int64(len(data)) || err != nil {
		t.Errorf("%d of %d bytes, %v", n, len(data), err)
	}
}

// A read stops before urgent data, and what is behind it comes without another
// event.
func TestUrgentData(t *testing.T) {
	s := newServer(t, Options{})
	received := make(chan string, 1)
	b := newBackend(t, func(c *net.TCPConn) {
		c.SetDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, len("beforeafter"))
		n, _ := io.ReadFull(c, b)
		received <- string(b[:n])
	})
	c := dial(t, listen(t, s, model.TCP, balance(b.at)).Addr())
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		text  string
		flags int
	}{{"before", 0}, {"!", syscall.MSG_OOB}, {"after", 0}} {
		var err error
		closed := raw.Control(func(fd uintptr) { err = syscall.Sendmsg(int(fd), []byte(part.text), nil, nil, part.flags) })
		if err = errors.Join(closed, err); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-received; got != "beforeafter" {
		t.Errorf("received %q", got)
	}
}

// Sockets that goroutines take over keep what the system has for keep-alive.
func TestAdoptKeepsOptions(t *testing.T) {
	s := newServer(t, Options{})
	fd, err := startConnect(named(t).at, 0)
	if err != nil {
		t.Fatal(err)
	}
	options := []int{syscall.TCP_NODELAY, syscall.TCP_KEEPIDLE, syscall.TCP_KEEPINTVL, syscall.TCP_KEEPCNT}
	values := func(fd int) (all []int) {
		for _, o := range options {
			v, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, o)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, v)
		}
		return all
	}
	before := fmt.Sprint(values(fd))
	if want := fmt.Sprint([]int{1, 600, 60, 5}); before != want {
		t.Errorf("%s, want %s", before, want)
	}
	c, err := s.asConn(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if after := fmt.Sprint(values(int(fd))); after != before {
			t.Errorf("%s, were %s", after, before)
		}
	})
}

// Clients of both families reach endpoints of both.
func TestFamilies(t *testing.T) {
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, l.Addr().String())
			c.Close()
		}
	}()
	six, four := l.Addr().(*net.TCPAddr).AddrPort(), named(t).at
	clients := make(chan netip.Addr, 1)
	s := newServer(t, Options{Origin: func(client netip.Addr) model.Origin {
		clients <- client
		return model.FromPod
	}})
	r, err := s.Listen(model.TCP, netip.MustParseAddrPort("[::]:0"), balance(four, six))
	if err != nil {
		t.Fatal(err)
	}
	local := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(), netip.IPv6Loopback()}
	seen := map[string]int{}
	for _, a := range local {
		name, err := who(t, netip.AddrPortFrom(a, r.Addr().Port()))
		if err != nil {
			t.Fatal(err)
		}
		seen[name]++
		if got := <-clients; got != a {
			t.Errorf("%s is taken for %s", a, got)
		}
	}
	if seen[four.String()] != 2 || seen[six.String()] != 2 {
		t.Errorf("not an even share: %v", seen)
	}
}
