// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLoad calls a server, which ends: held connections break, and new ones fail.
func TestLoad(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	go echo(listener{l, func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	said := &safe{}
	c := caller{say: said}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.run(ctx, []string{l.Addr().String()})
	}()
	wait(t, func() bool { n := c.counts(); return n.Held == heldByEach && n.Made > 3 })
	if n := c.counts(); n.Failed != 0 || n.Broken != 0 {
		t.Errorf("before the end: %+v\n%s", n, said)
	}
	l.Close()
	mu.Lock()
	for _, conn := range conns {
		conn.Close()
	}
	mu.Unlock()
	wait(t, func() bool { n := c.counts(); return n.Broken >= heldByEach && n.Failed > 0 })
	cancel()
	<-done
}

type listener struct {
	net.Listener
	accepted func(net.Conn)
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted(c)
	}
	return c, err
}

type safe struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func wait(t *testing.T, done func() bool) {
	t.Helper()
	for range 500 {
		if done() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("not within ten seconds")
}

func TestCounts(t *testing.T) {
	got, err := lastCounts("10:00:00 new: refused\n{\"Made\":5}\n{\"Made\":9,\"Failed\":1,\"Held\":10,\"Broken\":2}\n")
	if err != nil || got != (counts{9, 1, 10, 2}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := lastCounts("{\"Made\":9}\n10:00:01 held: reset\n10:00:01 new: refused\n"); err != nil || got.Made != 9 {
		t.Errorf("before complaints: %+v, %v", got, err)
	}
	if all := complaints("{\"Made\":9}\n10:00:01.000 new a:1: read tcp b:2->a:1: i/o timeout\n10:00:02.000 new a:1: read tcp b:3->a:1: i/o timeout\n"); len(all) != 1 || all["new a:1: i/o timeout"] != 2 {
		t.Errorf("complaints %v", all)
	}
	if d := got.minus(counts{Made: 5}); d != (counts{4, 1, 10, 2}) || d.plus(counts{Made: 5}) != got {
		t.Errorf("the difference is %+v", d)
	}
	if _, err := lastCounts("nothing yet"); err == nil {
		t.Error("no counts pass")
	}
}
