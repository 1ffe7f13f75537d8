// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// Kind is the kind of an object.
type Kind uint8

// The kinds of object, in the order of their creation.
const (
	kindHost     Kind = iota // the host, which classifies clients
	kindAddress              // an address assigned to an adapter
	kindListener             // a relay
)

// Key names an object.
type Key struct {
	Kind     Kind
	Proto    model.Proto    // of listeners
	At       netip.AddrPort // of listeners: where clients connect; of addresses, without a port
	Frontend netip.AddrPort // of listeners: the port; several may want one address
}

// Value is the content of an object.
type Value struct {
	Host   *model.Host   // of the host; only its IPs and Pods matter
	Policy *relay.Policy // of listeners
}

func (v Value) equal(o Value) bool {
	return sameOrigins(v.Host, o.Host) &&
		(v.Policy == o.Policy || v.Policy != nil && o.Policy != nil && v.Policy.Equal(o.Policy))
}

func sameOrigins(a, b *model.Host) bool {
	return a == b || a != nil && b != nil && slices.Equal(a.IPs, b.IPs) && slices.Equal(a.Pods.CIDRs, b.Pods.CIDRs)
}

// String names the object in errors.
func (k Key) String() string {
	switch k.Kind {
	case kindHost:
		return "host"
	case kindAddress:
		return "address " + k.At.Addr().String()
	}
	return fmt.Sprintf("listener %s %s", k.Proto, k.At)
}

// origin classifies a client. One with an address of this host, or one that was
// assigned to it, is a process of the host.
func origin(host *model.Host, assigned func(netip.Addr) bool, client netip.Addr) model.Origin {
	switch {
	case host == nil:
		return model.FromOutside
	case host.Pods.Match(client, ""):
		return model.FromPod
	case client.IsLoopback() || slices.Contains(host.IPs, client) || assigned(client):
		return model.FromHost
	}
	return model.FromOutside
}
