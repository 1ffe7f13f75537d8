// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// SCTP is spoken over raw sockets, since many kernels have no SCTP sockets but do
// track and translate SCTP. A raw socket gets the packets of all ports of its
// address, and a connected one the ICMP errors of all ports of its peer: therefore
// only one client of a place may contact an address at a time.

// checkSCTP returns an error if connection tracking in the namespace of the calling
// thread lacks SCTP. If connection tracking is not loaded that is unknown, and no
// error.
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

func listenSCTP(addr netip.AddrPort) (*net.IPConn, error) {
	if err := checkSCTP(); err != nil {
		return nil, err
	}
	c, err := net.ListenIP(rawNetwork(addr.Addr()), &net.IPAddr{IP: addr.Addr().AsSlice()})
	if err != nil {
		return nil, rawError(err)
	}
	return c, nil
}

// answerSCTP answers clients of a port until the socket fails and ended is true.
func answerSCTP(c *net.IPConn, addr netip.AddrPort, ended func() bool) {
	buf := make([]byte, 2048)
	for {
		n, peer, err := c.ReadFromIP(buf)
		if err != nil {
			if ended() {
				return
			}
			time.Sleep(retryAfter)
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
}

// dialSCTP opens a socket in the namespace of the calling thread.
func dialSCTP(src, to netip.Addr) (*net.IPConn, error) {
	if err := checkSCTP(); err != nil {
		return nil, err
	}
	var local *net.IPAddr
	if src.IsValid() {
		local = &net.IPAddr{IP: src.AsSlice()}
	}
	conn, err := net.DialIP(rawNetwork(to), local, &net.IPAddr{IP: to.AsSlice()})
	if err != nil {
		return nil, rawError(err)
	}
	return conn, nil
}

// initiateSCTP begins an association from one port to another, and returns the
// server's answer.
func initiateSCTP(conn *net.IPConn, from, to uint16) (string, error) {
	hello := initChunk{srcPort: from, dstPort: to, tag: uint32(from)<<16 | 1}
	if _, err := conn.Write(hello.encode()); err != nil && !errors.Is(err, unix.EPERM) {
		return "", err
	}
	buf := make([]byte, 2048)
	for {
		size, _, err := conn.ReadFromIP(buf)
		if err != nil {
			return "", err
		}
		in, ok := decode(buf[:size])
		if ok && in.ack && in.srcPort == to && in.dstPort == from && in.verification == hello.tag {
			return string(in.cookie), nil
		}
	}
}
