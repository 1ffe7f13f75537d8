// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Server answers requests with its own address and the client's, as it sees it. TCP
// connections stay open until the client or Close ends them.
type Server struct {
	net  *Net
	stop func() error
	done sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// Serve starts a server at an address of a place. It runs until its Close or
// that of the Net. For SCTP the error may be ErrNoSCTP.
func (n *Net) Serve(at Place, addr netip.AddrPort, proto model.Proto) (*Server, error) {
	s := &Server{net: n, conns: map[net.Conn]struct{}{}}
	err := n.Do(at, func() error {
		switch proto {
		case model.TCP:
			return s.tcp(addr)
		case model.UDP:
			return s.udp(addr)
		case model.SCTP:
			return s.sctp(addr)
		}
		return fmt.Errorf("no server for protocol %d", proto)
	})
	if err != nil {
		return nil, fmt.Errorf("serve %s %s in %s: %w", proto, addr, at, err)
	}
	n.mu.Lock()
	open := n.servers != nil
	if open {
		n.servers[s] = struct{}{}
	}
	n.mu.Unlock()
	if !open {
		_ = s.Close()
		return nil, ErrClosed
	}
	return s, nil
}

// Close ends the server and its connections and waits for them. It may be
// called more than once.
func (s *Server) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	if !first {
		return nil
	}
	err := s.stop()
	s.done.Wait()
	s.net.mu.Lock()
	delete(s.net.servers, s)
	s.net.mu.Unlock()
	return err
}

func (s *Server) tcp(addr netip.AddrPort) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr.String())
	if err != nil {
		return err
	}
	s.stop = l.Close
	s.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if s.ended() {
					return
				}
				time.Sleep(retryAfter) // out of descriptors: some connection will end
				continue
			}
			s.done.Go(func() { s.converse(c, addr) })
		}
	})
	return nil
}

// ended reports whether Close has been called.
func (s *Server) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *Server) converse(c net.Conn, me netip.AddrPort) {
	defer c.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	peer := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	in := bufio.NewReaderSize(c, 64)
	for {
		if _, err := in.ReadSlice('\n'); err != nil {
			return
		}
		if _, err := c.Write([]byte(introduce(me, plain(peer)))); err != nil {
			return
		}
	}
}

func (s *Server) udp(addr netip.AddrPort) error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return err
	}
	s.stop = c.Close
	s.done.Go(func() { answerUDP(c, addr, s.ended) })
	return nil
}

// answerUDP answers until ended.
func answerUDP(c *net.UDPConn, addr netip.AddrPort, ended func() bool) {
	buf := make([]byte, 64)
	for {
		_, peer, err := c.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil:
			// The client may have closed.
			_, _ = c.WriteToUDPAddrPort([]byte(introduce(addr, plain(peer))), peer)
		case ended():
			return
		default:
			time.Sleep(retryAfter)
		}
	}
}

// retryAfter is the time between attempts of a server whose socket fails.
const retryAfter = time.Millisecond

func (s *Server) sctp(addr netip.AddrPort) error {
	c, err := listenSCTP(addr)
	if err != nil {
		return err
	}
	s.stop = c.Close
	s.done.Go(func() { answerSCTP(c, addr, s.ended) })
	return nil
}

// plain undoes the mapping of IPv4 addresses into IPv6.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
