// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Addresses reads the addresses of this machine by polling. It is used by one goroutine at a
// time.
type Addresses struct{ looked time.Time }

// lookEvery is the interval at which the table of addresses is read.
const lookEvery = 5 * time.Second

// Changed reports whether the addresses are to be read again, changed or not.
func (a *Addresses) Changed() bool { return time.Since(a.looked) >= lookEvery }

// Wait waits until Changed reports true, or ctx ends.
func (a *Addresses) Wait(ctx context.Context) { sleep.For(ctx, time.Until(a.looked.Add(lookEvery))) }

// Close has nothing to close.
func (*Addresses) Close() error { return nil }

// List returns all addresses except loopback, link-local and those with SkipAsSource, which
// are on an adapter for Services, as in the mode userspace. They are ordered by interface
// index.
func (a *Addresses) List() (all []model.LocalAddress, err error) {
	a.looked = time.Now()
	var table *windows.MibUnicastIpAddressTable
	if err := windows.GetUnicastIpAddressTable(windows.AF_UNSPEC, &table); err != nil {
		return nil, fmt.Errorf("list the addresses of this machine: %w", err)
	}
	defer windows.FreeMibTable(unsafe.Pointer(table))
	rows := slices.Clone(unsafe.Slice(&table.Table[0], table.NumEntries))
	slices.SortFunc(rows, func(a, b windows.MibUnicastIpAddressRow) int { // the table has no order of its own
		x, _ := addressOf(&a.Address)
		y, _ := addressOf(&b.Address)
		return cmp.Or(cmp.Compare(a.InterfaceIndex, b.InterfaceIndex), x.Compare(y))
	})
	for _, row := range rows {
		ip, ok := addressOf(&row.Address)
		if !ok || ip.IsLoopback() || ip.IsLinkLocalUnicast() || row.SkipAsSource != 0 {
			continue
		}
		prefix := netip.PrefixFrom(ip, int(row.OnLinkPrefixLength))
		if prefix.IsValid() {
			all = append(all, model.LocalAddress{Prefix: prefix})
		}
	}
	return all, nil
}

// addressOf reads a SOCKADDR_INET, which is a union of both families.
func addressOf(from *windows.RawSockaddrInet6) (netip.Addr, bool) {
	switch from.Family {
	case windows.AF_INET:
		return netip.AddrFrom4((*windows.RawSockaddrInet4)(unsafe.Pointer(from)).Addr), true
	case windows.AF_INET6:
		return netip.AddrFrom16(from.Addr), true
	}
	return netip.Addr{}, false
}
