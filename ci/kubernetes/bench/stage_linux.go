package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

const clientPod = lab.Place("client")

var nodeIP, clientIP = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.244.1.10")

// stage is a node with a client, and a server that is every endpoint there is.
type stage struct {
	net      *lab.Net
	listener net.Listener
	group    sync.WaitGroup
}

func newStage(ctx context.Context, c *cluster.Cluster) (*stage, error) {
	n, err := lab.New(ctx, lab.Plan{
		Node:    []netip.Addr{nodeIP},
		Pods:    []lab.Pod{{Place: clientPod, Interface: "client", Addrs: []netip.Addr{clientIP}}},
		Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")},
	})
	if err != nil {
		return nil, err
	}
	s := &stage{net: n}
	if err := errors.Join(c.Join(n), s.serve()); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// serve makes Outside the home of all endpoints.
func (s *stage) serve() error {
	return s.net.Do(lab.Outside, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		all := &net.IPNet{IP: pods.Addr().AsSlice(), Mask: net.CIDRMask(pods.Bits(), 32)}
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("route to all endpoints: %w", err)
		}
		if s.listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", endpointPort)); err != nil {
			return err
		}
		s.group.Go(s.accept)
		return nil
	})
}

// accept tells every client which endpoint it has reached.
func (s *stage) accept() {
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		s.group.Go(func() {
			defer c.Close()
			_, _ = fmt.Fprintln(c, c.LocalAddr().(*net.TCPAddr).IP)
		})
	}
}

// inClient runs f on a thread of the client pod.
func (s *stage) inClient(f func() error) error { return s.net.Do(clientPod, f) }

// dial connects to a Service and returns which endpoint answers. It is for
// inClient. The connection is reset, so that nothing of it stays.
func dial(to netip.AddrPort, timeout time.Duration) (netip.Addr, error) {
	c, err := net.DialTimeout("tcp4", to.String(), timeout)
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.SetDeadline(time.Now().Add(timeout))); err != nil {
		return netip.Addr{}, err
	}
	line, err := bufio.NewReaderSize(c, 64).ReadString('\n')
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(line[:len(line)-1])
}

func (s *stage) close() error {
	if s.listener != nil {
		_ = s.listener.Close()
	}
	s.group.Wait()
	return s.net.Close()
}
