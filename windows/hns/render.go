// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

var schema = Version{2, 0}

// The names of our endpoints state what they are, and mark them as owned.
const (
	remotePrefix = "tandem_"
	vipPrefix    = "tandem-vip_"
	sourceName   = "tandem-source-vip"
)

// mac makes an address up from an IP, as kube-proxy does: remote endpoints need
// one, and it must be the same each time it is made.
func mac(a netip.Addr) string {
	b := a.AsSlice()
	b = b[len(b)-4:]
	if a.Is6() {
		slices.Reverse(b)
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// facts are what rendering needs beyond the objects themselves. They are
// immutable.
type facts struct {
	network   network
	node      [2]netip.Addr // this node's own addresses, by family
	hostMAC   string        // overlay: of the interface that has the node's address
	sourceVIP netip.Addr    // overlay
	askSource bool          // l2bridge: load balancers need a source VIP (Features.DefaultSource)
}

// endpoint renders a remote endpoint. The node is for VIP endpoints, and for
// addresses that no node of the overlay has.
func (f facts) endpoint(k Key, v Value) Endpoint {
	e := Endpoint{
		Name:               remotePrefix + k.Addr.String(),
		HostComputeNetwork: f.network.id,
		IpConfigurations:   []IpConfig{{IpAddress: k.Addr.String()}},
		MacAddress:         mac(k.Addr),
		Flags:              FlagRemote,
		SchemaVersion:      schema,
	}
	if !f.network.overlay {
		return e
	}
	node, ok := f.network.provider(k.Addr)
	if !ok {
		node = f.node[model.FamilyOf(k.Addr)]
	}
	if k.Kind == KindVIP {
		e.Name, e.MacAddress, node = vipPrefix+k.Addr.String(), f.hostMAC, v.Node
	}
	if node.IsValid() {
		e.Policies = []Policy{providerPolicy(node)}
	}
	return e
}

// sourceEndpoint renders the endpoint of the source VIP, which is local. Without an
// address the network's own address management in HNS gives it one.
func (f facts) sourceEndpoint() Endpoint {
	e := Endpoint{Name: sourceName, HostComputeNetwork: f.network.id, MacAddress: f.hostMAC, SchemaVersion: schema}
	if f.sourceVIP.IsValid() {
		e.IpConfigurations = []IpConfig{{IpAddress: f.sourceVIP.String()}}
	}
	return e
}

func providerPolicy(node netip.Addr) Policy {
	s, _ := json.Marshal(Provider{node.String()}) // a struct of a string
	return Policy{Type: PolicyProvider, Settings: s}
}

// balancer renders a load balancer over the endpoints with these ids.
func (f facts) balancer(k Key, v Value, ids []string) LoadBalancer {
	b := v.Balancer
	m := PortMapping{Protocol: uint32(k.Proto), InternalPort: b.Port, ExternalPort: k.Port}
	lb := LoadBalancer{HostComputeEndpoints: ids, SchemaVersion: schema}
	if b.SessionAffinity {
		m.DistributionType = DistributeBySource
	}
	if b.External {
		m.Flags |= FlagVIPExternalIP
	}
	if b.PreserveDestination {
		m.Flags |= FlagUseMux | FlagPreserveDIP
	}
	if k.Addr.IsUnspecified() {
		m.Flags |= FlagLocalRoutedVIP
	} else {
		lb.FrontendVIPs = []string{k.Addr.String()}
	}
	if b.DSR {
		lb.Flags |= FlagDSR
	}
	if k.Addr.Is6() {
		lb.Flags |= FlagIPv6
	}
	if source := f.source(v); source.IsValid() {
		lb.SourceVIP = source.String()
	}
	lb.PortMappings = []PortMapping{m}
	return lb
}

// source is the address that endpoints see where clients' addresses are not
// kept. On an overlay pods can answer the source VIP only, and endpoints outside
// the pod network can answer the node only. On l2bridge it is the network's own address,
// which HNS takes by default, as kube-proxy lets it, except for builds of Server
// 2019 on which hairpin connections would break: there it is the node's.
func (f facts) source(v Value) netip.Addr {
	switch {
	case !f.network.overlay && f.askSource:
		return v.Node
	case !f.network.overlay:
		return netip.Addr{}
	}
	for _, t := range v.Balancer.Endpoints {
		if !t.Local && !f.network.inside(t.Addr) {
			return v.Node
		}
	}
	return f.sourceVIP
}

// addresses returns an endpoint's addresses.
func addresses(e Endpoint) []netip.Addr {
	var all []netip.Addr
	for _, c := range e.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// ownedKey returns the object of an owned remote endpoint.
func ownedKey(e Endpoint) (Key, bool) {
	kind := KindRemote
	name, ok := strings.CutPrefix(e.Name, remotePrefix)
	if !ok {
		kind = KindVIP
		name, ok = strings.CutPrefix(e.Name, vipPrefix)
	}
	a, err := netip.ParseAddr(name)
	return Key{Kind: kind, Addr: a}, ok && err == nil && e.remote() && slices.Contains(addresses(e), a)
}

// providerOf returns the node behind which an endpoint is, if it has one.
func providerOf(e Endpoint) netip.Addr {
	for _, p := range e.Policies {
		var s Provider
		if p.Type == PolicyProvider && json.Unmarshal(p.Settings, &s) == nil {
			a, _ := netip.ParseAddr(s.ProviderAddress)
			return a
		}
	}
	return netip.Addr{}
}

// script is what would be asked of HNS, in the words of its schema. Ids, which
// only HNS knows, are replaced by addresses.
type script struct {
	Endpoints     []Endpoint
	LoadBalancers []LoadBalancer
}

// Script renders objects as the JSON that HNS would be given. Where remote pods
// are on an overlay, and its source VIP, is known on the node only.
func Script(objects map[Key]Value, overlay bool) string {
	f := facts{network: network{overlay: overlay}, hostMAC: "(host)"}
	s := script{Endpoints: []Endpoint{}, LoadBalancers: []LoadBalancer{}}
	for _, k := range slices.SortedFunc(maps.Keys(objects), Key.compare) {
		v := objects[k]
		switch k.Kind {
		case KindNode:
			f.node[model.FamilyOf(k.Addr)] = v.Node
		case KindSource:
			s.Endpoints = append(s.Endpoints, f.sourceEndpoint())
		case KindBalancer:
			s.LoadBalancers = append(s.LoadBalancers, f.balancer(k, v, names(v.Balancer.Endpoints)))
		default:
			s.Endpoints = append(s.Endpoints, f.endpoint(k, v))
		}
	}
	b, _ := json.MarshalIndent(s, "", "  ") // plain structs of strings and numbers
	return string(b) + "\n"
}

func names(ts []Target) []string {
	all := make([]string, len(ts))
	for i, t := range ts {
		all[i] = t.String()
	}
	return all
}
