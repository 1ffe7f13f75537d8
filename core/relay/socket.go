// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
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

const (
	// chunkSize is as much of a stream as is read at once: more is spliced.
	chunkSize = 16 << 10
	// maxDatagram has room for the largest one of UDP.
	maxDatagram = 64 << 10
	// smallBuffer is for a stream that is idle.
	smallBuffer = 2 << 10
	// maxBufferedSessions limits the UDP sessions of a Server where each has a buffer for the
	// largest datagram: 256 MiB at most, and half of that for one port, whose new clients then
	// take the places of those that are idle longest.
	maxBufferedSessions = 256 << 20 / maxDatagram
	// maxPause is how long a pipe or a large buffer is kept for a stream that pauses.
	maxPause = time.Second
)

// reader reads from a connection. It is used by one goroutine.
type reader interface {
	// next waits for data, which is valid until done. io.EOF is the end of a
	// stream; a datagram may be empty, too.
	next() ([]byte, error)
	done()
}

// newReader makes a reader that may use buffers of the pool, which are *[]byte.
type newReader func(c net.Conn, pool *sync.Pool) (reader, error)

// bufferedReader works on any system: it reads a stream with a small buffer of its
// own, and with a large one of the pool while data fills that.
type bufferedReader struct {
	conn  net.Conn
	pool  *sync.Pool // of *[]byte
	small []byte
	large *[]byte
}

func newBufferedStream(c net.Conn, pool *sync.Pool) (reader, error) {
	return &bufferedReader{conn: c, pool: pool, small: make([]byte, smallBuffer)}, nil
}

// newBufferedDatagrams has room for any datagram: what does not fit would be lost.
func newBufferedDatagrams(c net.Conn, _ *sync.Pool) (reader, error) {
	return &bufferedReader{conn: c, small: make([]byte, maxDatagram)}, nil
}

func (r *bufferedReader) next() ([]byte, error) {
	if r.large != nil {
		if data, err := r.readLarge(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return data, err
		}
	}
	n, err := r.conn.Read(r.small)
	if n == smallBuffer {
		r.large = r.pool.Get().(*[]byte)
	}
	return r.small[:n], err
}

// readLarge returns the large buffer to the pool when the stream pauses.
func (r *bufferedReader) readLarge() ([]byte, error) {
	if err := r.conn.SetReadDeadline(time.Now().Add(maxPause)); err != nil {
		return nil, err
	}
	n, err := r.conn.Read(*r.large)
	if err == nil {
		return (*r.large)[:n], nil
	}
	r.pool.Put(r.large)
	r.large = nil
	if clearErr := r.conn.SetReadDeadline(time.Time{}); clearErr != nil {
		return nil, clearErr
	}
	return nil, err
}

func (r *bufferedReader) done() {}
