package watch

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

type (
	dialer = func(ctx context.Context, network, address string) (net.Conn, error)
	lookup = func(ctx context.Context, network, host string) ([]netip.Addr, error)
)

// The bounds of what is told of a server with a name.
const (
	lookupTimeout = time.Second
	maxAddresses  = 64
	maxKnown      = 2 * maxAddresses
)

// announced tells the addresses of what is connected to, before the connection is
// used. As long as the server's name does not resolve what was told before is told with
// them.
func announced(dial dialer, resolve lookup, tell func([]netip.AddrPort)) dialer {
	var mu sync.Mutex // of known, and so that the last told is the last known
	var known []netip.AddrPort
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if remote, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			remote = netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())
			found, complete := serversOf(ctx, resolve, address, remote)
			mu.Lock()
			defer mu.Unlock()
			if !complete {
				found = append(found, known[:min(len(known), maxKnown-len(found))]...)
			}
			slices.SortFunc(found, netip.AddrPort.Compare)
			known = slices.Compact(found)
			tell(slices.Clone(known))
		}
		return conn, nil
	}
}

// serversOf returns the address connected to and the others of the server's name,
// which the next connection may go to, and whether these are all.
func serversOf(ctx context.Context, resolve lookup, address string, remote netip.AddrPort) (all []netip.AddrPort, complete bool) {
	all = []netip.AddrPort{remote}
	host, _, err := net.SplitHostPort(address)
	if err != nil || net.ParseIP(host) != nil {
		return all, true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := resolve(ctx, "ip", host)
	for _, ip := range ips[:min(len(ips), maxAddresses-1)] {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), remote.Port()))
	}
	return all, err == nil
}
