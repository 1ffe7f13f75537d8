// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// SCTP is spoken over raw sockets, since many kernels have no SCTP sockets but
// do track and translate SCTP. A raw socket gets the packets of all ports of
// its address, and a connected one the ICMP errors of all ports of its peer:
// that is why only one client of a place asks an address at a time.

// pair is who must take turns.
type pair struct {
	from Place
	to   netip.Addr
}

func (n *Net) turn(p pair) *sync.Mutex {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.turns[p] == nil {
		n.turns[p] = &sync.Mutex{}
	}
	return n.turns[p]
}

// checkSCTP looks, in the namespace of the calling thread, whether connection
// tracking knows SCTP. Where it is not loaded that cannot be told, and all is
// well as long as nobody needs it.
func checkSCTP() error {
	const dir = "/proc/sys/net/netfilter/"
	if _, err := os.Stat(dir + "nf_conntrack_max"); err != nil {
		return nil
	}
	if _, err := os.Stat(dir + "nf_conntrack_sctp_timeout_established"); err != nil {
		return fmt.Errorf("%w: its connection tracking was built without", ErrNoSCTP)
	}
	return nil
}

func rawNetwork(a netip.Addr) string {
	if a.Is4() {
		return fmt.Sprintf("ip4:%d", model.SCTP)
	}
	return fmt.Sprintf("ip6:%d", model.SCTP)
}

func rawError(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("%w: raw socket: %w", ErrNoSCTP, err)
	}
	return err
}

func (s *Server) sctp(addr netip.AddrPort) error {
	if err := checkSCTP(); err != nil {
		return err
	}
	c, err := net.ListenIP(rawNetwork(addr.Addr()), &net.IPAddr{IP: addr.Addr().AsSlice()})
	if err != nil {
		return rawError(err)
	}
	s.stop = c.Close
	s.done.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, peer, err := c.ReadFromIP(buf)
			if err != nil {
				if s.ended() {
					return
				}
				continue
			}
			in, ok := decode(buf[:n])
			if !ok || in.ack || in.dstPort != addr.Port() {
				continue
			}
			client, _ := netip.AddrFromSlice(peer.IP)
			out := initChunk{
				srcPort: in.dstPort, dstPort: in.srcPort, verification: in.tag, ack: true, tag: in.tag + 1,
				cookie: []byte(introduce(addr, netip.AddrPortFrom(client.Unmap(), in.srcPort))),
			}
			_, _ = c.WriteToIP(out.encode(), peer) // a lost answer is a time-out to the client
		}
	})
	return nil
}

// askSCTP runs inside the namespace of the caller.
func (n *Net) askSCTP(c Call) (Answer, error) {
	turn := n.turn(pair{c.From, c.To.Addr()})
	turn.Lock()
	defer turn.Unlock()
	if err := checkSCTP(); err != nil {
		return Answer{}, err
	}
	var local *net.IPAddr
	if c.Src.IsValid() {
		local = &net.IPAddr{IP: c.Src.AsSlice()}
	}
	conn, err := net.DialIP(rawNetwork(c.To.Addr()), local, &net.IPAddr{IP: c.To.Addr().AsSlice()})
	if err != nil {
		return Answer{}, rawError(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
		return Answer{}, err
	}
	port := n.port()
	hello := initChunk{srcPort: port, dstPort: c.To.Port(), tag: uint32(port)<<16 | 1}
	if _, err := conn.Write(hello.encode()); err != nil && !errors.Is(err, unix.EPERM) {
		return outcome(err)
	}
	buf := make([]byte, 2048)
	for {
		size, _, err := conn.ReadFromIP(buf)
		if err != nil {
			return outcome(err)
		}
		in, ok := decode(buf[:size])
		if ok && in.ack && in.srcPort == c.To.Port() && in.dstPort == port && in.verification == hello.tag {
			return understand(string(in.cookie))
		}
	}
}
