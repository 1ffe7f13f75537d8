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
	KindHost     Kind = iota // how senders are told from each other
	KindAddress              // an address of an adapter
	KindListener             // a relay
)

// Key names an object.
type Key struct {
	Kind  Kind
	Proto model.Proto    // of listeners
	At    netip.AddrPort // of listeners: where clients connect; of addresses, without a port
	Front netip.AddrPort // of listeners: whose it is; several may want to be in one place
}

// Value is the content of an object.
type Value struct {
	Host   *model.Host   // of the host; only its IPs and Pods count
	Policy *relay.Policy // of listeners
	Port   string        // of listeners: the Service's port
}

func (v Value) equal(o Value) bool {
	return v.Port == o.Port && sameSenders(v.Host, o.Host) &&
		(v.Policy == o.Policy || v.Policy != nil && o.Policy != nil && v.Policy.Equal(o.Policy))
}

func sameSenders(a, b *model.Host) bool {
	return a == b || a != nil && b != nil && slices.Equal(a.IPs, b.IPs) && slices.Equal(a.Pods.CIDRs, b.Pods.CIDRs)
}

// String names the object for people.
func (k Key) String() string {
	switch k.Kind {
	case KindHost:
		return "host"
	case KindAddress:
		return "address " + k.At.Addr().String()
	}
	return fmt.Sprintf("listener %s %s", k.Proto, k.At)
}

// origin tells where a client is from. Whoever has an address of this host is
// on it.
func origin(host *model.Host, own func(netip.Addr) bool, client netip.Addr) model.Origin {
	switch {
	case host == nil:
		return model.FromOutside
	case host.Pods.Match(client, ""):
		return model.FromPod
	case client.IsLoopback() || slices.Contains(host.IPs, client) || own(client):
		return model.FromHost
	}
	return model.FromOutside
}
