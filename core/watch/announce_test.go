// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// The address of each connection is reported before the connection is used, with the
// others of the server's name; of one that fails nothing.
func TestAnnounced(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	var told [][]netip.AddrPort
	dial := reportServers((&net.Dialer{}).DialContext, net.DefaultResolver.LookupNetIP, func(all []netip.AddrPort) { told = append(told, all) })
	for i, host := range []string{"127.0.0.1", "localhost"} {
		conn, err := dial(t.Context(), "tcp4", net.JoinHostPort(host, at.String()[len("127.0.0.1:"):]))
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if len(told) != i+1 || !slices.Contains(told[i], at) || !slices.IsSortedFunc(told[i], netip.AddrPort.Compare) {
			t.Errorf("%s: reported %v, want %v in it", host, told, at)
		}
	}
	broken := errors.New("broken")
	dial = reportServers(func(context.Context, string, string) (net.Conn, error) { return nil, broken }, nil, func([]netip.AddrPort) { t.Error("no connection reported") })
	if _, err := dial(t.Context(), "tcp4", "127.0.0.1:1"); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// A look-up that fails forgets no address, one that succeeds those that are gone; what
// is known is bounded.
func TestKnownServersOutliveFailedLookups(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var told, answer []netip.AddrPort
	var broken error
	dial := reportServers(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return net.Dial(network, l.Addr().String())
	}, func(context.Context, string, string) (ips []netip.Addr, err error) {
		for _, at := range answer {
			ips = append(ips, at.Addr())
		}
		return ips, broken
	}, func(all []netip.AddrPort) { told = all })
	at := netip.MustParseAddrPort(l.Addr().String())
	servers := func(n int) (all []netip.AddrPort) {
		for i := range n {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), at.Port()))
		}
		return all
	}
	for _, step := range []struct {
		answer []netip.AddrPort
		err    error
		want   int
	}{
		{servers(3), nil, 4},
		{nil, errors.New("no answer"), 4},
		{servers(4)[3:], errors.New("half an answer"), 5},
		{servers(2), nil, 3},
		{servers(200), nil, maxAddresses},
		{servers(250)[150:], errors.New("half an answer"), maxKnown - 1}, // one is there twice
	} {
		answer, broken = step.answer, step.err
		conn, err := dial(t.Context(), "tcp4", "api.example:6443")
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if len(told) != step.want || !slices.Contains(told, at) || !slices.IsSortedFunc(told, netip.AddrPort.Compare) {
			t.Errorf("%d looked up, %v: reported %d, want %d", len(step.answer), step.err, len(told), step.want)
		}
	}
}
