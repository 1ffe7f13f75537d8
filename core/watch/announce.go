package watch

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"
)

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// The bounds of what is told of a server with a name.
const (
	lookupTimeout = time.Second
	maxAddresses  = 64
)

// announced tells the addresses of what is connected to, before the connection is
// used.
func announced(dial dialer, tell func([]netip.AddrPort)) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if remote, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			remote = netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())
			tell(serversOf(ctx, address, remote))
		}
		return conn, nil
	}
}

// serversOf returns the address connected to and the others of the server's name,
// which the next connection may go to. A name that does not resolve has no others.
func serversOf(ctx context.Context, address string, remote netip.AddrPort) []netip.AddrPort {
	all := []netip.AddrPort{remote}
	host, _, err := net.SplitHostPort(address)
	if err == nil && net.ParseIP(host) == nil {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		ips, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		for _, ip := range ips[:min(len(ips), maxAddresses)] {
			all = append(all, netip.AddrPortFrom(ip.Unmap(), remote.Port()))
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}
