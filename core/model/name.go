// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// Name names an object among those of one kind, which have a type each: the name of a Service is
// none of an EndpointSlice.
type Name[Of any] struct{ Namespace, Name string }

type (
	ServiceName = Name[Service]
	SliceName   = Name[Slice]
	GrantName   = Name[Grant]
)

// String returns "namespace/name".
func (n Name[Of]) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then by name.
func (n Name[Of]) Compare(o Name[Of]) int {
	if c := cmp.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return cmp.Compare(n.Name, o.Name)
}

// ParseServiceName is the reverse of String.
func ParseServiceName(text string) (ServiceName, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return ServiceName{}, fmt.Errorf("%.100q is not a Service: want NAMESPACE/NAME", text)
	}
	return ServiceName{namespace, name}, nil
}

// PortID identifies a Port: one port of a Service in one IP family.
type PortID struct {
	Service ServiceName
	Name    string // the port's name; empty for the only port of a Service
	Proto   Proto
	Family  Family
}

// String returns "namespace/name:port", or "namespace/name" for an unnamed
// port. It is the form kube-proxy uses in comments and hashes; protocol and
// family are not part of it.
func (id PortID) String() string {
	if id.Name == "" {
		return id.Service.String()
	}
	return id.Service.String() + ":" + id.Name
}

// Compare orders ids by Service, port name, protocol and family.
func (id PortID) Compare(o PortID) int {
	if c := id.Service.Compare(o.Service); c != 0 {
		return c
	}
	if c := cmp.Compare(id.Name, o.Name); c != 0 {
		return c
	}
	if c := cmp.Compare(id.Proto, o.Proto); c != 0 {
		return c
	}
	return cmp.Compare(id.Family, o.Family)
}

// Family is an IP family.
type Family uint8

// The two families. Their values index arrays such as [2]T.
const (
	IPv4 Family = iota
	IPv6
)

// Families lists both families, for ranging.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamiliesOr returns the given families, both for none.
func FamiliesOr(some []Family) []Family {
	if len(some) > 0 {
		return some
	}
	return Families()
}

// FamilyOf returns the family of an address. IPv4-mapped IPv6 addresses never
// reach the model: the sources reject them.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String returns "IPv4" or "IPv6", the values of kube-proxy's ip_family label.
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// Unspecified is the unspecified address of this family, which means any.
func (f Family) Unspecified() netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// Loopback is 127.0.0.1 or ::1.
func (f Family) Loopback() netip.Addr {
	if f == IPv4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// Loopbacks are the addresses that never leave a host: 127.0.0.0/8 or ::1/128.
func (f Family) Loopbacks() netip.Prefix {
	if f == IPv4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
	}
	return netip.PrefixFrom(netip.IPv6Loopback(), 128)
}

// Bits is the length of an address of this family: 32 or 128.
func (f Family) Bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

// Proto is an IP protocol, by its IANA number.
type Proto uint8

// The protocols a Service port can have.
const (
	TCP  Proto = 6
	UDP  Proto = 17
	SCTP Proto = 132
)

// String returns the lower-case name, such as "tcp".
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "unknown"
}

// Destination is where packets of a protocol are sent: an address and a port.
type Destination struct {
	Proto Proto
	At    netip.AddrPort
}
