// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/relay/direct"
)

func onWindows(m dataplane.Mode) dataplane.Mode {
	m.Probe, m.Open = probe, open
	return m
}

func open(_ context.Context, c *config.Config, log *slog.Logger) (dataplane.Backend, error) {
	a, err := findAdapter()
	if err != nil {
		return nil, err
	}
	if a.loopback {
		log.Warn("no container network adapter; Services are reachable from this node only", "missing", preferred)
	}
	d := direct.Open(direct.Options{Addresses: a, Relay: relay.Options{TCP: relay.TimeoutsOf(c), Log: log}})
	return direct.NewBackend(placement(a.loopback), d), nil
}

// probe tries to assign an address.
func probe(context.Context) error {
	a, err := findAdapter()
	if err != nil {
		return err
	}
	err = tryAddress(a, func(err error) bool { return errors.Is(err, windows.ERROR_OBJECT_ALREADY_EXISTS) })
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) {
		err = fmt.Errorf("%w; run as Administrator", err)
	}
	return err
}

// adapter is a network adapter to which addresses are assigned (direct.Addresses).
type adapter struct {
	luid uint64
	api  iphlpapi
	// loopback adapters serve this node only.
	loopback bool
}

var _ direct.Addresses = (*adapter)(nil)

// iphlpapi holds functions of iphlpapi.dll that x/sys does not have, looked up at first use.
type iphlpapi struct{ initialize, create, remove *windows.LazyProc }

func loadIphlpapi() iphlpapi {
	dll := windows.NewLazySystemDLL("iphlpapi.dll")
	return iphlpapi{
		dll.NewProc("InitializeUnicastIpAddressEntry"), dll.NewProc("CreateUnicastIpAddressEntry"), dll.NewProc("DeleteUnicastIpAddressEntry"),
	}
}

// preferred is the adapter by which HNS connects containers to this node.
const preferred = "vEthernet (HNS Internal NIC)"

// findAdapter returns the adapter for the addresses of Services.
func findAdapter() (*adapter, error) {
	all, err := adapters()
	if err != nil {
		return nil, fmt.Errorf("listing network adapters: %w", err)
	}
	var loopback *adapter
	for a := (*windows.IpAdapterAddresses)(unsafe.Pointer(unsafe.SliceData(all))); a != nil; a = a.Next {
		switch {
		case windows.UTF16PtrToString(a.FriendlyName) == preferred:
			return &adapter{luid: a.Luid, api: loadIphlpapi()}, nil
		case a.IfType == windows.IF_TYPE_SOFTWARE_LOOPBACK:
			loopback = &adapter{luid: a.Luid, api: loadIphlpapi(), loopback: true}
		}
	}
	runtime.KeepAlive(all)
	if loopback == nil {
		return nil, errors.New("found neither the adapter \"" + preferred + "\" nor a loopback adapter; install one, or use another mode")
	}
	return loopback, nil
}

// adapters returns a buffer that begins with the first IP_ADAPTER_ADDRESSES, which links to
// the others in it.
func adapters() ([]uint64, error) {
	const attempts = 4 // the list may grow between two calls
	size := uint32(16 << 10)
	for range attempts {
		buf := make([]uint64, (size+7)/8)
		first := (*windows.IpAdapterAddresses)(unsafe.Pointer(unsafe.SliceData(buf)))
		err := windows.GetAdaptersAddresses(windows.AF_UNSPEC, 0, 0, first, &size)
		if err == nil {
			return buf, nil
		}
		if !errors.Is(err, windows.ERROR_BUFFER_OVERFLOW) {
			return nil, err
		}
	}
	return nil, windows.ERROR_BUFFER_OVERFLOW
}

// Add assigns an address for listening only: never a source, and without an on-link
// network.
func (a *adapter) Add(ip netip.Addr) error {
	row, err := a.row(ip)
	if err != nil {
		return err
	}
	row.OnLinkPrefixLength, row.SkipAsSource = uint8(ip.BitLen()), 1
	row.ValidLifetime, row.PreferredLifetime = lifetime, lifetime
	if err := call(a.api.create, row); err != nil {
		return fmt.Errorf("assigning %s to an adapter: %w", ip, err)
	}
	return nil
}

func (a *adapter) Remove(ip netip.Addr) error {
	row, err := a.row(ip)
	if err != nil {
		return err
	}
	if err := call(a.api.remove, row); err != nil && !errors.Is(err, windows.ERROR_NOT_FOUND) {
		return fmt.Errorf("removing %s from its adapter: %w", ip, err)
	}
	return nil
}

func (a *adapter) List() (own []netip.Addr, err error) {
	var table *windows.MibUnicastIpAddressTable
	if err := windows.GetUnicastIpAddressTable(windows.AF_UNSPEC, &table); err != nil {
		return nil, fmt.Errorf("listing the addresses of this node: %w", err)
	}
	defer windows.FreeMibTable(unsafe.Pointer(table))
	for _, row := range unsafe.Slice(&table.Table[0], table.NumEntries) {
		if row.InterfaceLuid == a.luid && row.SkipAsSource != 0 && marked(row.ValidLifetime) {
			own = append(own, addressOf(&row.Address))
		}
	}
	return own, nil
}

// row returns a table row for an address, initialised by Windows.
func (a *adapter) row(ip netip.Addr) (*windows.MibUnicastIpAddressRow, error) {
	row := &windows.MibUnicastIpAddressRow{}
	if err := a.api.initialize.Find(); err != nil {
		return nil, err
	}
	_, _, _ = a.api.initialize.Call(uintptr(unsafe.Pointer(row)))
	row.InterfaceLuid = a.luid
	setAddress(&row.Address, ip)
	return row, nil
}

// call calls a function that takes a row and returns a status.
func call(proc *windows.LazyProc, row *windows.MibUnicastIpAddressRow) error {
	if err := proc.Find(); err != nil {
		return err
	}
	status, _, _ := proc.Call(uintptr(unsafe.Pointer(row)))
	runtime.KeepAlive(row)
	if status != 0 {
		return windows.Errno(status)
	}
	return nil
}

// setAddress fills a SOCKADDR_INET, which is a union of both families.
func setAddress(to *windows.RawSockaddrInet6, ip netip.Addr) {
	*to = windows.RawSockaddrInet6{}
	if ip.Is4() {
		v4 := (*windows.RawSockaddrInet4)(unsafe.Pointer(to))
		v4.Family, v4.Addr = windows.AF_INET, ip.As4()
		return
	}
	to.Family, to.Addr = windows.AF_INET6, ip.As16()
}

func addressOf(from *windows.RawSockaddrInet6) netip.Addr {
	if from.Family == windows.AF_INET {
		return netip.AddrFrom4((*windows.RawSockaddrInet4)(unsafe.Pointer(from)).Addr)
	}
	return netip.AddrFrom16(from.Addr)
}
