// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// After keepIdle of silence the system probes the other end, keepCount times, and
// then ends the connection: a peer that vanished holds two descriptors for 15 minutes
// instead of Linux' default of 2 hours and 11 minutes. 10,000 idle connections cost
// 33 packets a second. keepIdle is well below the day for which conntrack keeps idle
// connections (kube-proxy's conntrack.tcpEstablishedTimeout), so that conntrack keeps
// the entries of those with a live peer.
const (
	keepIdle     = 10 * time.Minute
	keepInterval = time.Minute
	keepCount    = 5
)

// keepAlive is the same for sockets of package net.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount}
}

// reset closes a connection with a reset, so that the other end sees it fail.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// unmapped converts an IPv4-mapped IPv6 address to IPv4.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// The numbers of Windows' errors, which package syscall maps only on Windows.
const (
	wsaMFile        = syscall.Errno(10024)
	wsaAddrNotAvail = syscall.Errno(10049)
	wsaConnReset    = syscall.Errno(10054)
	wsaNoBufs       = syscall.Errno(10055)
	wsaConnRefused  = syscall.Errno(10061)
)

// isExhausted reports whether an error means that descriptors, ports or memory of
// this host are exhausted.
func isExhausted(err error) bool {
	for _, e := range [...]error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, wsaMFile, wsaNoBufs, wsaAddrNotAvail,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Absent reports whether an error means that the address to listen on is not (yet) an
// address of this host.
func Absent(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, wsaAddrNotAvail)
}

// isRefused reports whether the endpoint's host answered a datagram with "port
// unreachable", which Windows calls a reset.
func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, wsaConnReset) || errors.Is(err, wsaConnRefused)
}
