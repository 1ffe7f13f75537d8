// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Table is a table of virtual servers with the addresses of their destinations,
// for simulators.
type Table map[ID][]netip.AddrPort

// Add adds a virtual server or destinations of it.
func (t Table) Add(id ID, destinations ...netip.AddrPort) { t[id] = append(t[id], destinations...) }

// Find returns the virtual server of a packet as the kernel finds it: by mark,
// then by address.
func (t Table) Find(proto model.Proto, dst netip.AddrPort, mark uint32) (ID, bool) {
	family := model.FamilyOf(dst.Addr())
	for _, id := range [...]ID{{Family: family, FWMark: mark}, {Family: family, Proto: proto, Addr: dst}} {
		if _, ok := t[id]; ok {
			return id, true
		}
	}
	return ID{}, false
}
