// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// Call is a connection to be made.
type Call struct {
	From    Place
	Src     netip.Addr // of From; the zero value lets the kernel choose
	Proto   model.Proto
	To      netip.AddrPort
	Timeout time.Duration // for the whole of it
}

// Dial makes a connection, asks who is there, and hangs up. The error is about
// the network itself, such as an address that From does not have, or ErrNoSCTP;
// that nobody answers is an Answer.
func (n *Net) Dial(c Call) (Answer, error) {
	var a Answer
	ask := n.ask
	if c.Proto == model.SCTP {
		ask = n.askSCTP
	}
	err := n.Do(c.From, func() (err error) {
		a, err = ask(c)
		return err
	})
	if err != nil {
		return Answer{}, fmt.Errorf("dial %s %s from %s: %w", c.Proto, c.To, c.From, err)
	}
	return a, nil
}

// ask runs inside the namespace of the caller.
func (n *Net) ask(c Call) (Answer, error) {
	deadline := time.Now().Add(c.Timeout)
	conn, err := n.connect(c)
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	return converse(conn, deadline)
}

// askSCTP does the same for SCTP.
func (n *Net) askSCTP(c Call) (Answer, error) {
	turn := n.turn(pair{c.From, c.To.Addr()})
	turn.Lock()
	defer turn.Unlock()
	conn, err := dialSCTP(c.Src, c.To.Addr())
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
		return Answer{}, err
	}
	reply, err := initiateSCTP(conn, n.port(), c.To.Port())
	if err != nil {
		return outcome(err)
	}
	return understand(reply)
}

func (n *Net) turn(p pair) *sync.Mutex {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.turns[p] == nil {
		n.turns[p] = &sync.Mutex{}
	}
	return n.turns[p]
}

// Connect makes a TCP or UDP connection that stays. Ask talks over it. It is
// reset when it is closed, so that nothing of it remains.
func (n *Net) Connect(c Call) (conn net.Conn, err error) {
	err = n.Do(c.From, func() error {
		conn, err = n.connect(c)
		return err
	})
	return conn, err
}

// Ask asks the server at the other end of a connection who it is. After
// anything but an Answered the connection is of no further use.
func Ask(conn net.Conn, timeout time.Duration) (Answer, error) {
	return converse(conn, time.Now().Add(timeout))
}

func (n *Net) connect(c Call) (net.Conn, error) {
	const attempts = 8
	for attempt := 1; ; attempt++ {
		src := c.Src
		if !src.IsValid() {
			src = netip.IPv6Unspecified()
			if c.To.Addr().Is4() {
				src = netip.IPv4Unspecified()
			}
		}
		d := net.Dialer{Timeout: c.Timeout, FallbackDelay: -1, KeepAlive: -1}
		local := netip.AddrPortFrom(src, n.port())
		if c.Proto == model.TCP {
			d.LocalAddr, d.Control = net.TCPAddrFromAddrPort(local), impatient
		} else {
			d.LocalAddr = net.UDPAddrFromAddrPort(local)
		}
		conn, err := d.DialContext(context.Background(), c.Proto.String(), c.To.String())
		if errors.Is(err, unix.EADDRINUSE) && attempt < attempts {
			continue
		}
		if t, ok := conn.(*net.TCPConn); ok && err == nil {
			err = t.SetLinger(0)
		}
		return conn, err
	}
}

// impatient makes an IPv6 TCP socket hear of ICMP errors in any case, as IPv4
// sockets do. Within one machine the error often arrives while connect still
// holds the socket; Linux then only notes it, and the client would learn of it
// when the first packet is sent again, a second later. In a rare race it does so
// all the same: the error is announced before it is noted.
func impatient(network, _ string, c syscall.RawConn) error {
	if network != "tcp6" {
		return nil
	}
	var err error
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	})
	return errors.Join(control, err)
}

// port gives out source ports one after the other. The kernel's own choice
// comes back to a port soon, and then connection tracking may still know a
// former flow of it and send this one the same way.
func (n *Net) port() uint16 {
	const first, count = 33000, 32000 // above node ports
	return uint16(first + n.ports.Add(1)%count)
}

func converse(conn net.Conn, deadline time.Time) (Answer, error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return Answer{}, err
	}
	// A packet of this host that its own rules drop fails with EPERM; what the
	// client gets to know of it comes afterwards, if at all.
	if _, err := conn.Write([]byte(question)); err != nil && !errors.Is(err, unix.EPERM) {
		return outcome(err)
	}
	line, err := bufio.NewReaderSize(conn, 128).ReadString('\n')
	if err != nil {
		return outcome(err)
	}
	return understand(line)
}

// outcome turns what a socket says into an Answer. A connection that is closed
// without a word was refused by somebody who cannot refuse otherwise.
func outcome(err error) (Answer, error) {
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return Answer{Outcome: TimedOut}, nil
	}
	for _, refusal := range []error{
		unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE, unix.EHOSTUNREACH, unix.EACCES, unix.ENOPROTOOPT, unix.EPROTO, io.EOF,
	} {
		if errors.Is(err, refusal) {
			return Answer{Outcome: Refused}, nil
		}
	}
	return Answer{}, err
}
