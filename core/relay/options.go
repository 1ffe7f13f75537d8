// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Options are common to all relays of a Server.
type Options struct {
	// Origin classifies a client. It is called for every connection, from many
	// goroutines. Nil is FromOutside for all.
	Origin func(netip.Addr) model.Origin

	// UDPIdle is how long a UDP session without a datagram lasts; 0 is a minute.
	UDPIdle time.Duration

	// TCP are the timeouts of connections; zero values are DefaultTimeouts.
	TCP Timeouts

	// Mark is the fwmark of packets to endpoints, on systems that have one, so that
	// rules can distinguish them from those of clients; 0 is none.
	Mark uint32

	// Handover, unless nil, passes sockets between the relays of several servers, and to the
	// next process.
	Handover Handover

	Log *slog.Logger // nil for none
}

// Handover lets two data planes of a process serve at one address while one follows the other,
// and keeps listening TCP sockets beyond the end of the process: clients wait in their
// accept queues instead of being refused. Each server has one of its own; what they share is
// safe for concurrent use.
type Handover interface {
	// Inherit returns a listener at an address: the previous process's, or another descriptor of
	// one that another server of this process uses. It is the caller's then; nil if there is
	// none.
	Inherit(at netip.AddrPort) *net.TCPListener
	// InheritUDP is the same for a UDP socket, of another server of this process alone.
	InheritUDP(at netip.AddrPort) *net.UDPConn
	// Keep is called with every socket that is in use, inherited ones included.
	Keep(proto model.Proto, at netip.AddrPort, socket syscall.Conn)
	// Forget is called with one that its server no longer needs. Where no other one does, neither
	// does the next process.
	Forget(proto model.Proto, at netip.AddrPort, socket syscall.Conn)
	// Release closes the listeners that no Inherit has asked for. It follows the first sync.
	Release()
}

const defaultUDPIdle = time.Minute

func (o Options) withDefaults() Options {
	if o.Origin == nil {
		o.Origin = func(netip.Addr) model.Origin { return model.FromOutside }
	}
	if o.UDPIdle == 0 {
		o.UDPIdle = defaultUDPIdle
	}
	o.TCP = o.TCP.withDefaults()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Timeouts end idle TCP connections, without data in either direction. The
// keep-alive of the system ends those with a peer that has vanished; these end
// connections with a live peer that does not use them any more, since each holds two
// descriptors.
type Timeouts struct {
	Idle       time.Duration // of open connections
	HalfClosed time.Duration // of those that one side has closed
}

// DefaultTimeouts are kube-proxy's conntrack.tcpEstablishedTimeout and
// conntrack.tcpCloseWaitTimeout: a kernel mode forgets the connection after the same
// time. Its userspace mode had neither timeout and kept such connections forever
// (kubernetes#14641, #17641); a minute for half-closed ones, Linux' default, has
// broken clients (kubernetes#32551).
func DefaultTimeouts() Timeouts { return Timeouts{Idle: 24 * time.Hour, HalfClosed: time.Hour} }

// TimeoutsOf returns the timeouts of a configuration. Where that leaves those of
// conntrack as they are, they are the defaults.
func TimeoutsOf(c *config.Config) (t Timeouts) {
	if d := c.Conntrack.TCPEstablished; d != nil {
		t.Idle = *d
	}
	if d := c.Conntrack.TCPCloseWait; d != nil {
		t.HalfClosed = *d
	}
	return t.withDefaults()
}

func (t Timeouts) withDefaults() Timeouts {
	d := DefaultTimeouts()
	if t.Idle > 0 {
		d.Idle = t.Idle
	}
	if t.HalfClosed > 0 {
		d.HalfClosed = t.HalfClosed
	}
	return d
}

// limited are the timeouts for connections of a Service port that has all the
// slots it may have, while its clients wait: Envoy's default for idle TCP
// connections (tcp_proxy.idle_timeout), and Linux' for half-closed ones
// (nf_conntrack_tcp_timeout_close_wait).
func (t Timeouts) limited() Timeouts {
	return Timeouts{Idle: min(t.Idle, time.Hour), HalfClosed: min(t.HalfClosed, time.Minute)}
}
