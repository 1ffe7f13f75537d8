package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// address is the shelter as an address of lo, for this host alone: of host scope
// and deprecated, so that the kernel never chooses it as a source.
func address(f model.Family) (netlink.Link, *netlink.Addr, error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, nil, fmt.Errorf("the loopback interface: %w", err)
	}
	a := Shelter(f)
	addr := &netlink.Addr{
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		Scope: unix.RT_SCOPE_HOST,
	}
	if f == model.IPv6 {
		addr.Flags = unix.IFA_F_NODAD
		addr.ValidLft, addr.PreferedLft = 1<<32-1, 0
	}
	return lo, addr, nil
}

func addShelter(f model.Family) error {
	lo, addr, err := address(f)
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(lo, addr); err != nil {
		return fmt.Errorf("add %s to lo: %w", addr.IP, err)
	}
	return reachable(f)
}

// reachable waits for the route to a new address. For IPv6 the kernel adds it
// later, from a queue that may have to wait for a lock.
func reachable(f model.Family) (err error) {
	const attempts, pause = 200, 10 * time.Millisecond
	for range attempts {
		var routes []netlink.Route
		routes, err = netlink.RouteGet(Shelter(f).AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		time.Sleep(pause)
	}
	return fmt.Errorf("%s was added to lo and cannot be reached: %w", Shelter(f), cmp.Or(err, error(unix.ENETUNREACH)))
}

func removeShelter(f model.Family) error {
	lo, addr, err := address(f)
	if err != nil {
		return err
	}
	if err := netlink.AddrDel(lo, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove %s from lo: %w", addr.IP, err)
	}
	return nil
}

func hasShelter(f model.Family) (bool, error) {
	lo, addr, err := address(f)
	if err != nil {
		return false, err
	}
	family := [...]int{model.IPv4: unix.AF_INET, model.IPv6: unix.AF_INET6}[f]
	var all []netlink.Addr
	err = host.RetryInterrupted(func() error {
		all, err = netlink.AddrList(lo, family)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list the addresses of lo: %w", err)
	}
	for _, a := range all {
		if a.IP.Equal(addr.IP) {
			return true, nil
		}
	}
	return false, nil
}

// sink listens on the silent port: sockets whose filter lets no packet in, so
// that clients hear nothing, not even that somebody listens.
type sink []io.Closer

func openSink(f model.Family) (s sink, err error) {
	at := netip.AddrPortFrom(Shelter(f), silentPort).String()
	config := net.ListenConfig{Control: deafen}
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp", at)
	if err != nil {
		return nil, fmt.Errorf("the silent port: %w", err)
	}
	s = append(s, l)
	u, err := config.ListenPacket(context.Background(), "udp", at)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the silent port: %w", err), s.close())
	}
	return append(s, u), nil
}

func (s sink) close() error {
	var errs []error
	for _, c := range s {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// deafen gives a socket a filter that keeps nothing of any packet.
func deafen(_, _ string, c syscall.RawConn) error {
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	var err error
	control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	})
	return errors.Join(control, err)
}
