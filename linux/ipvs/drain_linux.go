// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// service is a virtual server as IPVS wants it named.
func service(marks *fwmarks, k Key) (*ipvs.Service, error) {
	s := &ipvs.Service{AddressFamily: uint16(netlinkFamily(k.Family)), Netmask: ^uint32(0)}
	if k.Family == model.IPv6 {
		s.Netmask = 128
	}
	if k.Via == ByAddress {
		s.Protocol, s.Address, s.Port = uint16(k.Proto), k.Dst.Addr().AsSlice(), k.Dst.Port()
		return s, nil
	}
	fwmark, err := marks.of(k)
	s.FWMark = fwmark
	return s, err
}

// destination is the destination of a key, as IPVS wants it.
func destination(k Key, weight int) *ipvs.Destination {
	return &ipvs.Destination{Address: k.Peer.addr.AsSlice(), Port: k.Peer.n, Weight: weight, ConnectionFlags: ipvs.ConnectionFlagMasq}
}

// destKey is the key of a destination.
func destKey(server Key, d *ipvs.Destination) Key {
	a, _ := netip.AddrFromSlice(d.Address)
	server.Kind, server.Peer = KindDest, Peer{a.Unmap(), d.Port}
	return server
}

// Draining destinations are looked at every drainCheck, and after drainLimit
// they go, connections or not: the time after which the kernel itself gives up
// on a TCP connection that says nothing.
const (
	drainCheck = 2 * time.Second
	drainLimit = 15 * time.Minute
)

// drains are destinations that get no new connections (weight 0) and go when
// they have none left. The kernel's weights are the only record: a restart finds
// them there, and their time begins anew.
type drains struct {
	kernel *sockets
	marks  *fwmarks
	quit   chan struct{}
	done   chan struct{}
	now    func() time.Time

	mu        sync.Mutex
	deadlines map[Key]map[Key]time.Time // by virtual server
	failing   bool                      // the last check did
}

func startDrains(k *sockets, marks *fwmarks) *drains {
	d := &drains{
		kernel: k, marks: marks, now: time.Now, deadlines: map[Key]map[Key]time.Time{},
		quit: make(chan struct{}), done: make(chan struct{}),
	}
	go d.run()
	return d
}

func (d *drains) run() {
	defer close(d.done)
	tick := time.NewTicker(drainCheck)
	defer tick.Stop()
	for {
		select {
		case <-d.quit:
			return
		case <-tick.C:
			d.check()
		}
	}
}

func (d *drains) stop() {
	close(d.quit)
	<-d.done
	d.kernel.close()
}

// add notes a destination whose weight is 0.
func (d *drains) add(dest Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	server := dest.serverOf()
	if d.deadlines[server] == nil {
		d.deadlines[server] = map[Key]time.Time{}
	}
	if _, known := d.deadlines[server][dest]; !known {
		d.deadlines[server][dest] = d.now().Add(drainLimit)
	}
}

// cancel takes a destination out of the list, and reports whether it was in it.
func (d *drains) cancel(dest Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	server := dest.serverOf()
	_, draining := d.deadlines[server][dest]
	delete(d.deadlines[server], dest)
	return draining
}

// forget drops all destinations of a virtual server.
func (d *drains) forget(server Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.deadlines, server)
}

// check deletes what is idle or late. It works on one virtual server at a time,
// so that a Commit never waits for long. What cannot be read or deleted is tried
// again, and told the first time.
func (d *drains) check() {
	d.mu.Lock()
	servers := make([]Key, 0, len(d.deadlines))
	for server := range d.deadlines {
		servers = append(servers, server)
	}
	d.mu.Unlock()
	var failed error
	for _, server := range servers {
		if err := d.checkServer(server); err != nil && failed == nil {
			failed = wrap(server.String(), err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if failed != nil && !d.failing {
		slog.Warn("checking draining IPVS destinations failed", "mode", Name, "err", failed, "retry", drainCheck)
	}
	d.failing = failed != nil
}

func (d *drains) checkServer(server Key) (failed error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.deadlines[server]) == 0 {
		delete(d.deadlines, server)
		return nil
	}
	s, err := service(d.marks, server)
	if err != nil {
		return err
	}
	have, err := d.kernel.ipvs.GetDestinations(s)
	if err != nil {
		return err
	}
	left := map[Key]bool{}
	for _, dest := range have {
		k := destKey(server, dest)
		until, draining := d.deadlines[server][k]
		idle := dest.ActiveConnections == 0 && dest.InactiveConnections == 0
		if !draining || dest.Weight != 0 {
			continue
		}
		if !idle && d.now().Before(until) {
			left[k] = true
			continue
		}
		if err := ignore(d.kernel.ipvs.DelDestination(s, destination(k, 0)), unix.ENOENT, unix.ESRCH); err != nil {
			left[k], failed = true, err
		}
	}
	for k := range d.deadlines[server] {
		if !left[k] {
			delete(d.deadlines[server], k)
		}
	}
	return failed
}
