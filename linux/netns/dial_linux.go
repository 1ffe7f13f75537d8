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

// Dial makes a connection, asks the server for its name, and closes the connection.
// An error is about the network itself, such as a source address that From does not
// have, or ErrNoSCTP; a refused or unanswered connection is an Answer.
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

// Connect makes a TCP or UDP connection and keeps it open, for Ask. Closing it sends
// a reset, so that no state remains.
func (n *Net) Connect(c Call) (conn net.Conn, err error) {
	err = n.Do(c.From, func() error {
		conn, err = n.connect(c)
		return err
	})
	return conn, err
}

// Ask asks the server at the other end of a connection for its name. After any
// outcome but Answered the connection cannot be used again.
func Ask(conn net.Conn, timeout time.Duration) (Answer, error) {
	return converse(conn, time.Now().Add(timeout))
}

// DialOnce makes a TCP connection as Dial does, and returns an error if a SYN of it was lost.
// That is counted, as on a busy machine an answer may take as long as a repeated SYN.
func (n *Net) DialOnce(c Call) (Answer, error) {
	conn, err := n.Connect(c)
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return Answer{}, err
	}
	var info *unix.TCPInfo
	control := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(control, err); err != nil {
		return Answer{}, err
	}
	if info.Total_retrans > 0 {
		return Answer{}, fmt.Errorf("the SYN to %s was sent %d times", c.To, 1+info.Total_retrans)
	}
	return Ask(conn, c.Timeout)
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
			d.LocalAddr, d.Control = net.TCPAddrFromAddrPort(local), reportICMP
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

// reportICMP makes an IPv6 TCP socket report ICMP errors at once, as IPv4 sockets do.
// Within one machine the error often arrives while connect holds the socket lock;
// Linux then only stores it, and the client would see it when the SYN is
// retransmitted, a second later. A rare race remains: the socket is woken up before
// the error is stored.
func reportICMP(network, _ string, c syscall.RawConn) error {
	if network != "tcp6" {
		return nil
	}
	var err error
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	})
	return errors.Join(control, err)
}

// port returns source ports in sequence. The kernel's own choice reuses ports soon,
// and connection tracking may then still have an entry of an earlier flow and send
// this one the same way.
func (n *Net) port() uint16 {
	const first, count = 33000, 32000 // above node ports
	return uint16(first + n.ports.Add(1)%count)
}

func converse(conn net.Conn, deadline time.Time) (Answer, error) {
	if err := conn.SetDeadline(deadline); err != nil {
		return Answer{}, err
	}
	// Sending a packet that the host's own rules drop fails with EPERM; what the
	// client learns comes later, if at all.
	if _, err := conn.Write([]byte(question)); err != nil && !errors.Is(err, unix.EPERM) {
		return outcome(err)
	}
	line, err := bufio.NewReaderSize(conn, 128).ReadString('\n')
	if err != nil {
		return outcome(err)
	}
	return understand(line)
}

// outcome turns a socket error into an Answer. A connection that is closed without
// data counts as refused: a relay cannot refuse otherwise.
func outcome(err error) (Answer, error) {
	if slow, is := errors.AsType[net.Error](err); is && slow.Timeout() {
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
