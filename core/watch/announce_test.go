package watch

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// Of each connection the address is told before the connection is used, with the
// others of the server's name; of one that fails nothing.
func TestAnnounced(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	var told [][]netip.AddrPort
	dial := announced((&net.Dialer{}).DialContext, func(all []netip.AddrPort) { told = append(told, all) })
	for i, host := range []string{"127.0.0.1", "localhost"} {
		conn, err := dial(t.Context(), "tcp4", net.JoinHostPort(host, at.String()[len("127.0.0.1:"):]))
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if len(told) != i+1 || !slices.Contains(told[i], at) || !slices.IsSortedFunc(told[i], netip.AddrPort.Compare) {
			t.Errorf("%s: told %v, want %v in it", host, told, at)
		}
	}
	broken := errors.New("broken")
	dial = announced(func(context.Context, string, string) (net.Conn, error) { return nil, broken }, func([]netip.AddrPort) { t.Error("told of no connection") })
	if _, err := dial(t.Context(), "tcp4", "127.0.0.1:1"); !errors.Is(err, broken) {
		t.Error(err)
	}
}
