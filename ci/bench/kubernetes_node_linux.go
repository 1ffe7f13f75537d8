// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

const clientPod = lab.Place("client")

var clientIP = netip.MustParseAddr("10.244.1.10")

// testNode is a node with a client, and a server that is every endpoint there is.
type testNode struct {
	net      *lab.Net
	listener net.Listener
	group    sync.WaitGroup
}

func newTestNode(ctx context.Context, c *cluster.Cluster) (*testNode, error) {
	net, err := lab.New(ctx, lab.Plan{
		Node:    []netip.Addr{nodeIP},
		Pods:    []lab.Pod{{Place: clientPod, Interface: "client", Addrs: []netip.Addr{clientIP}}},
		Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")},
	})
	if err != nil {
		return nil, err
	}
	n := &testNode{net: net}
	if err := errors.Join(c.Join(net), n.serve()); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// serve makes Outside the home of all endpoints.
func (n *testNode) serve() error {
	return n.net.Do(lab.Outside, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		all := &net.IPNet{IP: pods.Addr().AsSlice(), Mask: net.CIDRMask(pods.Bits(), 32)}
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("route to all endpoints: %w", err)
		}
		if n.listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", endpointPort)); err != nil {
			return err
		}
		n.group.Go(n.accept)
		return nil
	})
}

// accept sends every client the generation of the endpoint it has reached.
func (n *testNode) accept() {
	for {
		c, err := n.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		n.group.Go(func() {
			defer c.Close()
			_, _ = fmt.Fprintln(c, c.LocalAddr().(*net.TCPAddr).IP)
		})
	}
}

// inClient runs f on a thread of the client pod.
func (n *testNode) inClient(f func() error) error { return n.net.Do(clientPod, f) }

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

func (n *testNode) close() error {
	if n.listener != nil {
		_ = n.listener.Close()
	}
	n.group.Wait()
	return n.net.Close()
}

// programmed waits until some Services all over the world have answered.
func (n *testNode) programmed(ctx context.Context, w world, p *cluster.Process) error {
	const sentinels = 20
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	errs := make(chan error, sentinels)
	for i := range sentinels {
		go func() { errs <- n.inClient(func() error { return wait(ctx, w, (w.services-1)*i/(sentinels-1)) }) }()
	}
	var failed error
	for range sentinels {
		select {
		case err := <-errs:
			failed = errors.Join(failed, err)
		case <-p.Done():
			return fmt.Errorf("the proxy ended:\n%s", p.Said(20))
		}
	}
	if failed != nil {
		return fmt.Errorf("not everything was programmed: %w:\n%s", failed, p.Said(20))
	}
	return nil
}

// wait waits until a Service answers.
func wait(ctx context.Context, w world, i int) error {
	for {
		_, err := dial(w.vip(i), 50*time.Millisecond)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", name(i), err)
		}
		sleep(ctx, 5*time.Millisecond) // where it is refused at once
	}
}

// complete waits until really every Service answers: the sentinels were not the
// only ones. It returns how many did not when the sentinels did.
func (n *testNode) complete(ctx context.Context, w world) (late int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var missing atomic.Int64
	err = each(ctx, w.services, func(i int) error {
		return n.inClient(func() error {
			if _, err := dial(w.vip(i), time.Second); err == nil {
				return nil
			}
			missing.Add(1)
			return wait(ctx, w, i)
		})
	})
	return missing.Load(), err
}

// startTime is how long a proxy may take for everything.
const startTime = 5 * time.Minute
