// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// Errors of the kernel that callers distinguish.
const (
	ErrNoServer      = unix.ESRCH
	ErrNoDestination = unix.ENOENT
	ErrExists        = unix.EEXIST
)

// Conn is a connection to the kernel's IPVS, in the network namespace of the
// thread that opened it. One goroutine may use it at a time.
type Conn struct{ handle *ipvs.Handle }

// Open returns a connection. Before the first one Load or Loaded must have found
// IPVS: otherwise the library looks for a modprobe program, and logs its failure.
func Open() (*Conn, error) {
	h, err := ipvs.New("")
	if err != nil {
		return nil, fmt.Errorf("IPVS: %w", err)
	}
	return &Conn{h}, nil
}

// Close closes the connection.
func (c *Conn) Close() { c.handle.Close() }

// Create makes a virtual server; ErrExists if there is one.
func (c *Conn) Create(id ID, s Server) error { return c.handle.NewService(serviceOf(id, s)) }

// Update changes a virtual server; ErrNoServer if there is none.
func (c *Conn) Update(id ID, s Server) error { return c.handle.UpdateService(serviceOf(id, s)) }

// Delete deletes a virtual server with its destinations. It is no error if there
// is none.
func (c *Conn) Delete(id ID) error { return ignoreGone(c.handle.DelService(serviceOf(id, Server{}))) }

// Get returns a virtual server, and false if there is none.
func (c *Conn) Get(id ID) (Server, bool, error) {
	s, err := c.handle.GetService(serviceOf(id, Server{}))
	if err != nil {
		return Server{}, false, ignoreGone(err)
	}
	return serverOf(s), true, nil
}

// List calls f for every virtual server, until it returns an error. f may use the
// connection.
func (c *Conn) List(f func(ID, Server) error) error {
	return c.each(func(id ID, s *ipvs.Service) error { return f(id, serverOf(s)) })
}

// Counts calls f for every virtual server with the connections that it has had since it
// was made. It is one dump.
func (c *Conn) Counts(f func(ID, Server, uint64)) error {
	return c.each(func(id ID, s *ipvs.Service) error {
		f(id, serverOf(s), uint64(s.Stats.Connections))
		return nil
	})
}

func (c *Conn) each(f func(ID, *ipvs.Service) error) error {
	all, err := c.handle.GetServices()
	if err != nil {
		return err
	}
	for _, s := range all {
		if id, ok := idOf(s); ok {
			if err := f(id, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// CountsOf calls f for every destination of a virtual server with the connections that it has
// had since it was made.
func (c *Conn) CountsOf(id ID, f func(at netip.AddrPort, n uint64)) error {
	have, err := c.handle.GetDestinations(serviceOf(id, Server{}))
	if err != nil {
		return err
	}
	for _, d := range have {
		a, _ := netip.AddrFromSlice(d.Address)
		f(netip.AddrPortFrom(a.Unmap(), d.Port), uint64(d.Stats.Connections))
	}
	return nil
}

// Destinations lists the destinations of a virtual server.
func (c *Conn) Destinations(id ID) ([]Destination, error) {
	have, err := c.handle.GetDestinations(serviceOf(id, Server{}))
	if err != nil {
		return nil, err
	}
	all := make([]Destination, len(have))
	for i, d := range have {
		a, _ := netip.AddrFromSlice(d.Address)
		all[i] = Destination{netip.AddrPortFrom(a.Unmap(), d.Port), d.Weight, d.ActiveConnections + d.InactiveConnections}
	}
	return all, nil
}

// AddDestination makes a destination; ErrExists if there is one.
func (c *Conn) AddDestination(id ID, addr netip.AddrPort, weight int) error {
	return c.handle.NewDestination(serviceOf(id, Server{}), destinationOf(addr, weight))
}

// SetWeight changes the weight of a destination; ErrNoDestination if there is none.
func (c *Conn) SetWeight(id ID, addr netip.AddrPort, weight int) error {
	return c.handle.UpdateDestination(serviceOf(id, Server{}), destinationOf(addr, weight))
}

// DeleteDestination deletes a destination. It is no error if there is none.
func (c *Conn) DeleteDestination(id ID, addr netip.AddrPort) error {
	return ignoreGone(c.handle.DelDestination(serviceOf(id, Server{}), destinationOf(addr, 0)))
}

// SetTimeouts sets how long IPVS keeps idle connections, in whole seconds; 0
// changes nothing.
func (c *Conn) SetTimeouts(tcp, tcpFin, udp time.Duration) error {
	if tcp == 0 && tcpFin == 0 && udp == 0 {
		return nil
	}
	return c.handle.SetConfig(&ipvs.Config{
		TimeoutTCP: tcp.Round(time.Second), TimeoutTCPFin: tcpFin.Round(time.Second), TimeoutUDP: udp.Round(time.Second),
	})
}

// ignoreGone drops the errors that a virtual server or destination does not exist.
func ignoreGone(err error) error {
	if errors.Is(err, ErrNoServer) || errors.Is(err, ErrNoDestination) {
		return nil
	}
	return err
}

func serviceOf(id ID, s Server) *ipvs.Service {
	v := &ipvs.Service{SchedName: s.Scheduler, Flags: s.Flags, Timeout: s.Timeout, FWMark: id.FWMark}
	v.AddressFamily, v.Netmask = unix.AF_INET, ^uint32(0)
	if id.Family == model.IPv6 {
		v.AddressFamily, v.Netmask = unix.AF_INET6, 128
	}
	if id.FWMark == 0 {
		v.Protocol, v.Address, v.Port = uint16(id.Proto), id.Addr.Addr().AsSlice(), id.Addr.Port()
	}
	return v
}

func idOf(s *ipvs.Service) (ID, bool) {
	id := ID{FWMark: s.FWMark}
	if s.AddressFamily == unix.AF_INET6 {
		id.Family = model.IPv6
	}
	if s.FWMark != 0 {
		return id, true
	}
	a, ok := netip.AddrFromSlice(s.Address)
	id.Proto, id.Addr = model.Proto(s.Protocol), netip.AddrPortFrom(a.Unmap(), s.Port)
	return id, ok
}

func serverOf(s *ipvs.Service) Server {
	v := Server{Scheduler: s.SchedName, Flags: s.Flags &^ hashed}
	if v.Flags&Persistent != 0 {
		v.Timeout = s.Timeout
	}
	return v
}

func destinationOf(addr netip.AddrPort, weight int) *ipvs.Destination {
	return &ipvs.Destination{Address: addr.Addr().AsSlice(), Port: addr.Port(), Weight: weight, ConnectionFlags: ipvs.ConnectionFlagMasq}
}
