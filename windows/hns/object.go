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

// Key names an object.
type Key struct {
	Kind  Kind
	Proto model.Proto // of KindBalancer and KindSurplus
	Port  uint16      // same: the port that clients connect to
	// Addr is the address of an endpoint or of a balancer's frontend; the
	// unspecified one of the family for node ports and for KindNode.
	Addr netip.Addr
}

// Kind is the kind of an object.
type Kind uint8

// The kinds, in the order of their creation.
const (
	// KindNode is this node's own address. HNS holds no such object: the driver needs
	// the address to create the others.
	KindNode Kind = iota
	// KindSource is the endpoint of an overlay's source VIP.
	KindSource
	// KindRemote is a remote endpoint: a pod, or host, of another node.
	KindRemote
	// KindVIP is a remote endpoint that makes a cluster IP reachable on an
	// overlay network: it leads to this node.
	KindVIP
	// KindBalancer is a load balancer of one frontend.
	KindBalancer
	// KindDuplicate is a remote endpoint, of any creator, with the address of a pod of
	// this node. It is never wanted: while it exists the pod has no network
	// (Windows-Containers#631).
	KindDuplicate
	// KindSurplus are owned load balancers of a frontend that has another one, and owned ones
	// with several frontends or with none (port 0). They are never wanted: which of two
	// HNS uses is unknown.
	KindSurplus
)

// nodeAddress is the key of this node's own address of a family.
func nodeAddress(f model.Family) Key { return Key{Kind: KindNode, Addr: f.Unspecified()} }

// sourceKey is the key of the source VIP's endpoint. Overlays have no IPv6.
func sourceKey() Key { return Key{Kind: KindSource, Addr: model.IPv4.Unspecified()} }

// String returns the object's name for people.
func (k Key) String() string {
	switch k.Kind {
	case KindNode:
		return "node address " + model.FamilyOf(k.Addr).String()
	case KindSource:
		return "source VIP endpoint"
	case KindDuplicate:
		return "duplicate endpoint " + k.Addr.String()
	case KindRemote:
		return "remote endpoint " + k.Addr.String()
	case KindVIP:
		return "VIP endpoint " + k.Addr.String()
	case KindSurplus:
		return "surplus load balancer " + k.frontend()
	}
	return "load balancer " + k.frontend()
}

func (k Key) frontend() string {
	if k.Port == 0 {
		return k.Addr.String() + " without a frontend"
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.Addr, k.Port), k.Proto)
}

// surplus names the surplus load balancers of a balancer's frontend.
func (k Key) surplus() Key {
	k.Kind = KindSurplus
	return k
}

// compare orders keys: endpoints before balancers, by address.
func (k Key) compare(o Key) int {
	if k.Kind != o.Kind {
		return int(k.Kind) - int(o.Kind)
	}
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	if k.Port != o.Port {
		return int(k.Port) - int(o.Port)
	}
	return int(k.Proto) - int(o.Proto)
}

// Value is the content of an object. KindRemote has none: its node follows from its
// address and the network.
type Value struct {
	// Node is this node's own address in the family; the zero value while it is
	// not known. Balancers may need it as a source, VIP endpoints as a target.
	Node     netip.Addr
	Balancer *Balancer // of KindBalancer; immutable

	// Drift states how an installed object differs in what only the driver knows, such as
	// ids. In compiled objects it is empty.
	Drift string
}

// Balancer is a load balancer without its frontend.
type Balancer struct {
	Endpoints           []Target // in address order, none twice, never empty
	Port                uint16   // of all endpoints
	DSR                 bool     // endpoints see the client's address and answer it directly
	External            bool     // serves clients outside this node, too
	SessionAffinity     bool     // all connections of a client go to one endpoint
	PreserveDestination bool     // endpoints see the frontend's address as the destination

	// Namespace is the Service's where the load balancer counts against its namespace's share
	// of the node's ports (inventory.room), else empty. HNS does not store it: for load balancers of an
	// earlier process it is unknown until the first Commit.
	Namespace string
}

// Target is an endpoint of a Balancer.
type Target struct {
	Addr  netip.Addr
	Local bool // a pod of this node: its CNI plug-in makes the endpoint
}

// self is this node as a target, with the unspecified address: the endpoint that
// represents it is found by its name (Settings.Root).
func self(f model.Family) Target { return Target{f.Unspecified(), true} }

// String returns the target for people.
func (t Target) String() string {
	if t.Addr.IsUnspecified() {
		return "the node's own endpoint"
	}
	return t.Addr.String()
}

func (v Value) equal(o Value) bool {
	if v.Node != o.Node || v.Drift != o.Drift || (v.Balancer == nil) != (o.Balancer == nil) {
		return false
	}
	if v.Balancer == nil {
		return true
	}
	a, b := v.Balancer, o.Balancer
	return a.Port == b.Port && a.DSR == b.DSR && a.External == b.External && a.SessionAffinity == b.SessionAffinity && a.PreserveDestination == b.PreserveDestination &&
		a.Namespace == b.Namespace &&
		slices.Equal(a.Endpoints, b.Endpoints)
}

// String describes an object in one line, without its name.
func (v Value) String() string {
	var words []string
	if b := v.Balancer; b != nil {
		words = append(words, fmt.Sprintf("to port %d of", b.Port))
		for _, t := range b.Endpoints {
			words = append(words, t.String())
		}
		for _, flag := range [...]struct {
			set  bool
			name string
		}{{b.DSR, "DSR"}, {b.External, "external"}, {b.SessionAffinity, "session affinity"}, {b.PreserveDestination, "preserve destination"}} {
			if flag.set {
				words = append(words, flag.name)
			}
		}
	}
	if v.Node.IsValid() {
		words = append(words, "on "+v.Node.String())
	}
	if v.Drift != "" {
		words = append(words, "("+v.Drift+")")
	}
	return strings.Join(words, " ")
}

var schema = Version{2, 0}

// The names of our endpoints state what they are, and mark them as owned.
const (
	remotePrefix = "tandem_"
	vipPrefix    = "tandem-vip_"
	sourceName   = "tandem-source-vip"
)

// mac derives the MAC address of a remote endpoint from its IP address, as kube-proxy
// does: HNS needs one, and it must be stable.
func mac(a netip.Addr) string {
	b := a.AsSlice()
	b = b[len(b)-4:]
	if a.Is6() {
		slices.Reverse(b)
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// facts are what rendering needs beyond the objects themselves.
type facts struct {
	network   network
	node      [2]netip.Addr // this node's own addresses, by family
	hostMAC   string        // overlay: of the interface that has the node's address
	sourceVIP netip.Addr    // overlay
	chosenVIP bool          // HNS chose sourceVIP: no IPAM has reserved it
	askSource bool          // l2bridge: load balancers need a source VIP (Features.DefaultSource)
}

// endpoint renders a remote endpoint. On an overlay, VIP endpoints are behind v.Node, and
// addresses that no node has behind this one.
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

// sourceEndpoint renders the source VIP's endpoint, which is local. If it has no
// address, HNS chooses one of the network.
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

// source is the address that HNS translates clients' addresses to (SNAT). On an overlay,
// pods can answer the source VIP only, and endpoints outside the pod network the node
// only. On l2bridge it is left to HNS, as with kube-proxy: the network's own address, but
// on builds of Server 2019, where hairpin connections would break, the node's.
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

// providerOf returns the node that an endpoint is behind, if it has one.
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

// script is what HNS would be requested to create, in its schema. Addresses stand for
// ids, which only HNS knows.
type script struct {
	Endpoints     []Endpoint
	LoadBalancers []LoadBalancer
}

// Script renders objects as the JSON that HNS would be given. The nodes of remote pods on
// an overlay, and its source VIP, are known on the node only.
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

// keysOf returns the frontends of a load balancer, and whether it has exactly one, as
// those that Tandem requests.
func keysOf(lb LoadBalancer) (keys []Key, single bool) {
	for _, a := range vipsOf(lb) {
		for _, m := range lb.PortMappings {
			if m.Protocol > 255 {
				continue // not an IP protocol number
			}
			keys = append(keys, Key{KindBalancer, model.Proto(m.Protocol), m.ExternalPort, a})
		}
	}
	return keys, len(keys) == 1 && len(lb.FrontendVIPs) <= 1 && len(lb.PortMappings) == 1
}

// vipsOf returns the VIPs of a load balancer: for one on the node's own addresses the
// unspecified one of its family.
func vipsOf(lb LoadBalancer) (vips []netip.Addr) {
	for _, s := range lb.FrontendVIPs {
		if a, err := netip.ParseAddr(s); err == nil {
			vips = append(vips, a.Unmap())
		}
	}
	if len(lb.FrontendVIPs) == 0 {
		vips = append(vips, lb.unspecified())
	}
	return vips
}

// surplusKey names an owned load balancer with several frontends by the first of them, and one
// that has lost its port mapping (kubernetes#141488) by its address.
func surplusKey(lb LoadBalancer) Key {
	if keys, _ := keysOf(lb); len(keys) > 0 {
		return keys[0].surplus()
	}
	for _, a := range vipsOf(lb) {
		return Key{Kind: KindSurplus, Addr: a}
	}
	return Key{Kind: KindSurplus, Addr: lb.unspecified()}
}

// unspecified is the unspecified address of a load balancer's family.
func (lb LoadBalancer) unspecified() netip.Addr {
	if lb.Flags&FlagIPv6 != 0 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// differs lists the settings in which an installed load balancer is not as wanted;
// empty for none.
func differs(have, want LoadBalancer) string {
	var in []string
	say := func(what string, differs bool) {
		if differs {
			in = append(in, what)
		}
	}
	say("endpoints", !sameSet(have.HostComputeEndpoints, want.HostComputeEndpoints))
	say("source VIP "+have.SourceVIP, !sameAddr(have.SourceVIP, want.SourceVIP))
	say("flags", have.Flags != want.Flags)
	say("port mapping", !slices.Equal(have.PortMappings, want.PortMappings))
	return strings.Join(in, ", ")
}

// beyondEndpoints reports whether two load balancers differ in more than their endpoints,
// all that HNS can change in place.
func beyondEndpoints(have, want LoadBalancer) bool {
	have.HostComputeEndpoints = want.HostComputeEndpoints
	return differs(have, want) != ""
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func sameAddr(a, b string) bool {
	x, err := netip.ParseAddr(a)
	y, err2 := netip.ParseAddr(b)
	return a == b || err == nil && err2 == nil && x.Unmap() == y.Unmap()
}

// endpointValue returns the value of a remote endpoint without drift.
func (f facts) endpointValue(k Key) (v Value) {
	if k.Kind == KindVIP {
		v.Node = f.node[model.FamilyOf(k.Addr)]
	}
	return v
}

// Fields that HNS does not return cannot be compared.

func sameMAC(have, want Endpoint) bool {
	mac := strings.ReplaceAll(have.MacAddress, ":", "-")
	return mac == "" || strings.EqualFold(mac, want.MacAddress)
}

func sameProvider(have, want Endpoint) bool {
	node := providerOf(have)
	return !node.IsValid() || node == providerOf(want)
}
