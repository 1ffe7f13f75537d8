// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// A segment outside of the window, such as one that was long delayed, does no harm
// to a connection to a Service. Connection tracking finds it invalid and does not
// translate it: the client would get it from the endpoint's address, where it has
// no connection, and reset it (kubernetes/kubernetes issue 74839).
func TestInvalidSegment(t *testing.T) {
	all, err := conformance.Load(os.DirFS(conformance.Corpus(t)))
	if err != nil {
		t.Fatal(err)
	}
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		for _, s := range all {
			if s.Name == "clusterip-basic" {
				invalidSegment(t, s, func(net *lab.Net) Proxy {
					enter := func(f func() error) error { return net.Do(lab.Node, f) }
					if mode.Name == relay.Mode {
						return &remote{mode: relay.Mode, enter: enter, wrap: flavour.wrap}
					}
					return &tandem{mode: mode.Name, enter: enter}
				})
			}
		}
	})
}

func invalidSegment(t *testing.T, s *conformance.Scenario, make func(*lab.Net) Proxy) {
	inv := take(s)
	network, err := lab.New(t.Context(), inv.plan)
	if err != nil {
		t.Fatal(err)
	}
	r := run{scenario: s, net: network, inventory: inv, dir: t.TempDir(), proxy: make(network)}
	defer func() {
		if err := errors.Join(r.proxy.Stop(), network.Close()); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(r.serve(), r.step(t.Context(), s.Steps[0])); err != nil {
		t.Fatal(err)
	}
	client := netip.MustParseAddr("10.244.1.10")
	from, _ := network.PlaceOf(client)
	for range 8 {
		conn, err := network.Connect(lab.Call{From: from, Src: client, Proto: model.TCP, To: clusterIP, Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		server := replay(t, network, conn)
		time.Sleep(20 * time.Millisecond) // a reset takes no longer
		if a, err := lab.Ask(conn, 5*time.Second); err != nil || a.Outcome != lab.Answered {
			t.Errorf("after an old segment from %s: %s, %v", server, a.Outcome, err)
		}
	}
}

// replay asks over a connection and then sends, from the server that answered, a
// segment that is long outside of the window.
func replay(t *testing.T, network *lab.Net, conn net.Conn) (server netip.AddrPort) {
	t.Helper()
	first, err := lab.Ask(conn, 5*time.Second)
	if err != nil || first.Outcome != lab.Answered {
		t.Fatalf("%s, %v", first.Outcome, err)
	}
	place, ok := network.PlaceOf(first.Server.Addr())
	if !ok {
		t.Fatalf("%s is nowhere", first.Server)
	}
	err = network.Do(place, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
			return err
		}
		if again, err := lab.Ask(conn, 5*time.Second); err != nil || again.Outcome != lab.Answered {
			return errors.Join(errors.New("the second question"), err)
		}
		seq, ack, err := lastSegment(fd, first.Client, first.Server)
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: first.Server.Addr().As4()}); err != nil {
			return err
		}
		// What the client has acknowledged is where the server is, and the other
		// way about.
		return unix.Sendto(fd, segment(first.Server, first.Client, ack+1<<28, seq), 0, &unix.SockaddrInet4{Addr: first.Client.Addr().As4()})
	})
	if err != nil {
		t.Fatal(err)
	}
	return first.Server
}

// lastSegment reads the segment with which the client acknowledges an answer, and
// returns its numbers: the next of the client and the next of the server.
func lastSegment(fd int, client, server netip.AddrPort) (seq, ack uint32, err error) {
	buf := make([]byte, 1<<16)
	for question := false; ; {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return 0, 0, err
		}
		tcp := buf[:n][int(buf[0]&15)*4:]
		if binary.BigEndian.Uint16(tcp) != client.Port() || binary.BigEndian.Uint16(tcp[2:]) != server.Port() {
			continue
		}
		data := len(tcp) - int(tcp[12]>>4)*4
		seq, ack = binary.BigEndian.Uint32(tcp[4:])+uint32(data), binary.BigEndian.Uint32(tcp[8:])
		if question = question || data > 0; question && data == 0 {
			return seq, ack, nil
		}
	}
}

// segment is one of a byte, with a right checksum.
func segment(from, to netip.AddrPort, seq, ack uint32) []byte {
	tcp := make([]byte, 21)
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = 5<<4, 0x18 // no options; PSH, ACK
	binary.BigEndian.PutUint16(tcp[14:], 500)
	pseudo := append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	sum := uint32(0)
	for i, b := range append(pseudo, tcp...) {
		sum += uint32(b) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	return tcp
}
