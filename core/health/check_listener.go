// SPDX-License-Identifier: Apache-2.0

package health

import (
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// checkKey names a check: each family has a listener and a count of its own.
type checkKey struct {
	service model.ServiceName
	family  model.Family
}

// wanted is the desired state of a check.
type wanted struct {
	port  uint16
	refs  int          // ports of the Service that ask for it
	local atomic.Int64 // LocalReady
}

// task is a check that Run has to reconcile; wanted is nil if it is to be closed.
type task struct {
	key    checkKey
	wanted *wanted
	port   uint16
	binds  []netip.Addr
	within []netip.Prefix
}

// check is one that is served.
type check struct {
	key       checkKey
	wanted    *wanted
	port      uint16
	binds     []netip.Addr
	within    []netip.Prefix
	listeners []net.Listener

	since time.Time     // when it was opened
	pause time.Duration // before the next attempt, if it fails
}

func (k *check) fits(t task) bool {
	return t.wanted == k.wanted && t.port == k.port && slices.Equal(t.binds, k.binds) && slices.Equal(t.within, k.within)
}

// bindAddresses returns the addresses to bind for a family's checks: those that node
// ports answer on. Single addresses are bound as given. For prefixes all addresses
// are bound and connections to those outside of within are reset, since the node's
// addresses change. within is nil for all.
func bindAddresses(host *model.Host, family model.Family) (binds []netip.Addr, within []netip.Prefix) {
	const most = 8 // listeners of one check
	for _, p := range host.NodePorts.Prefixes {
		if model.FamilyOf(p.Addr()) != family {
			continue
		}
		if p.Bits() == 0 {
			return []netip.Addr{family.Unspecified()}, nil
		}
		within = append(within, p)
		if p.IsSingleIP() {
			binds = append(binds, p.Addr())
		}
	}
	if len(binds) < len(within) || len(binds) > most {
		binds = []netip.Addr{family.Unspecified()}
	}
	return binds, within
}

// admits reports whether a check answers on the address that a client asks.
func (k *check) admits(c net.Conn) bool {
	if k.within == nil {
		return true
	}
	at, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	ip := at.AddrPort().Addr().Unmap()
	return slices.ContainsFunc(k.within, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func (k *check) close() {
	for _, l := range k.listeners {
		_ = l.Close()
	}
}
