// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
)

// Random is a random world: few names and addresses, so that they collide.
type Random struct {
	Host     *model.Host
	Config   config.Config // the settings that Host follows from
	Services []*model.Service
	Slices   []*model.Slice
	Routes   []*model.Route // see WithRoutes
}

// NewRand returns the source of randomness that belongs to a seed.
func NewRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x7a6d)) }

// RandomWorld makes a world. Equal seeds make equal worlds.
func RandomWorld(rng *rand.Rand) Random {
	var w Random
	w.Host, w.Config = randomHost(rng)
	for i := range 1 + rng.IntN(8) {
		w.Services = append(w.Services, randomService(rng, i))
		for j := range rng.IntN(4) {
			w.Slices = append(w.Slices, randomSlice(rng, i, j))
		}
	}
	return w
}

// WithRoutes returns the world with routes of the Gateway API, of which Change changes
// some.
func (w Random) WithRoutes(rng *rand.Rand) Random {
	for i := range 1 + rng.IntN(4) {
		w.Routes = append(w.Routes, randomRoute(rng, i))
	}
	return w
}

func randomRoute(rng *rand.Rand, i int) *model.Route {
	r := &model.Route{Name: model.RouteName{Proto: pick(rng, model.TCP, model.TCP, model.UDP), Namespace: "default", Name: fmt.Sprintf("r%d", i)}}
	r.Created = time.Unix(1_700_000_000+rng.Int64N(2), 0)
	for range 1 + rng.IntN(3) {
		r.Parents = append(r.Parents, model.RouteParent{Service: fmt.Sprintf("s%d", rng.IntN(8)), Port: pick[uint16](rng, 0, 0, 53, 80)})
	}
	for range rng.IntN(4) {
		r.Backends = append(r.Backends, model.RouteBackend{
			Service: model.ServiceName{Namespace: pick(rng, "default", "default", "default", "other"), Name: fmt.Sprintf("s%d", rng.IntN(8))},
			Port:    pick[uint16](rng, 53, 80, 81, 443), Weight: pick[uint32](rng, 0, 1, 1, 20, 80, 1_000_000),
		})
	}
	return r
}

// Change returns a world that differs in one object or, at times, in the host.
// Objects that stay keep their pointers.
func (w Random) Change(rng *rand.Rand) Random {
	w.Services, w.Slices, w.Routes = slices.Clone(w.Services), slices.Clone(w.Slices), slices.Clone(w.Routes)
	if len(w.Routes) > 0 && chance(rng, 20) {
		k := rng.IntN(len(w.Routes))
		route := randomRoute(rng, k)
		route.Name.Proto = w.Routes[k].Name.Proto
		w.Routes[k] = route
		return w
	}
	i, j := rng.IntN(8), rng.IntN(3)
	switch n := rng.IntN(20); {
	case n == 0:
		w.Host, w.Config = randomHost(rng)
	case n == 1:
		w.Host = withRanges(w.Host, rng)
	case n < 5:
		w.Services = replace(w.Services, randomService(rng, i))
	case n < 7:
		w.Services = without(rng, w.Services)
	case n < 17:
		w.Slices = replace(w.Slices, randomSlice(rng, i, j))
	default:
		w.Slices = without(rng, w.Slices)
	}
	return w
}

// Ports resolves the world from scratch.
func (w Random) Ports() []*model.Port {
	t := track.New()
	w.Feed(t, Random{})
	t.Flush()
	return Ports(t)
}

// Feed passes the differences between before and w to a tracker.
func (w Random) Feed(t *track.Tracker, before Random) {
	if w.Host != before.Host {
		t.SetHost(w.Host)
	}
	Feed(t, before.objects(), w.objects())
}

func (w Random) objects() *model.Objects {
	return &model.Objects{Services: w.Services, Slices: w.Slices, Routes: w.Routes}
}

func replace[T model.Object](all []T, x T) []T {
	if i := slices.IndexFunc(all, func(o T) bool { return o.Key() == x.Key() }); i >= 0 {
		all[i] = x
		return all
	}
	return append(all, x)
}

func without[T any](rng *rand.Rand, all []T) []T {
	if len(all) == 0 {
		return all
	}
	i := rng.IntN(len(all))
	return slices.Delete(all, i, i+1)
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// some returns a random subset in random order.
func some[T any](rng *rand.Rand, most int, from ...T) []T {
	rng.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	return from[:rng.IntN(min(most, len(from))+1)]
}

func chance(rng *rand.Rand, percent int) bool { return rng.IntN(100) < percent }

func addrs(format string, n int) (all []netip.Addr) {
	for i := 1; i <= n; i++ {
		all = append(all, netip.MustParseAddr(fmt.Sprintf(format, i)))
	}
	return all
}

func randomHost(rng *rand.Rand) (h *model.Host, c config.Config) {
	c = config.Default()
	c.NodeName = NodeName
	c.MasqueradeAll = chance(rng, 20)
	switch rng.IntN(5) {
	case 0:
		c.ClusterCIDRs = prefixes("10.244.0.0/16 fd00:10:244::/56")
	case 1:
		c.DetectLocal = config.DetectNodeCIDR
	case 2:
		c.DetectLocal, c.PodBridge = config.DetectBridgeInterface, "cni0"
	case 3:
		c.DetectLocal, c.PodInterfacePrefix = config.DetectInterfacePrefix, "veth"
	}
	switch rng.IntN(3) {
	case 0:
		c.NodePorts.Primary = true
	case 1:
		c.NodePorts.Prefixes = some(rng, 2, prefixes("192.0.2.0/24 2001:db8::/64 198.51.100.0/24 127.0.0.0/8")...)
	}
	onLoopback := chance(rng, 30)
	c.NodePorts.Loopback = &onLoopback
	node := &model.Node{
		Name: NodeName, Zone: pick(rng, "zone-a", "zone-a", "zone-b", ""),
		IPs:      []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		PodCIDRs: prefixes("10.244.1.0/24 fd00:10:244:1::/64"),
	}
	return withRanges(resolve.Host(&c, node, nil, model.Machine{}), rng), c
}

// withRanges returns the host with other ranges of cluster IPs, half of the time
// none. Some have external IPs in them, or endpoints.
func withRanges(h *model.Host, rng *rand.Rand) *model.Host {
	other := *h
	other.ServiceCIDRs = nil
	if chance(rng, 50) {
		other.ServiceCIDRs = model.Canonical(some(rng, 4, prefixes(
			"10.96.0.0/16 10.96.0.12/30 fd00:10:96::/112 fd00:10:96::e/127 203.0.113.0/30 2001:db8:cafe::/64 10.244.2.0/24 fd00:10:244:2::/64")...))
	}
	return &other
}

func randomService(rng *rand.Rand, i int) *model.Service {
	s := &model.Service{
		Name: model.ServiceName{Namespace: tenant(i), Name: fmt.Sprintf("s%d", i)},
		Type: pick(rng, model.ClusterIP, model.NodePort, model.LoadBalancer, model.LoadBalancer),

		ClusterIPs:  randomClusterIPs(rng, i),
		ExternalIPs: some(rng, 2, append(addrs("203.0.113.%d", 3), addrs("2001:db8:cafe::%d", 2)...)...),
		External:    pick(rng, model.Cluster, model.Local),
		Internal:    pick(rng, model.Cluster, model.Cluster, model.Local),
		Ports:       randomPorts(rng),
	}
	if chance(rng, 50) {
		s.Created = time.Unix(1_700_000_000+rng.Int64N(4), 0)
	}
	if chance(rng, 30) {
		s.SessionAffinity = time.Duration(1+rng.IntN(10800)) * time.Second
	}
	if s.Type == model.LoadBalancer {
		s.LoadBalancerIPs = some(rng, 2, append(addrs("203.0.113.%d", 4), addrs("2001:db8:cafe::%d", 3)...)...)
		s.HealthCheckNodePort = uint16(32000 + i)
		if s.Restricted = chance(rng, 50); s.Restricted {
			s.SourceRanges = some(rng, 4, prefixes("198.51.100.0/24 198.51.100.128/25 192.0.2.0/24 10.244.1.0/28 0.0.0.0/0 2001:db8:1::/64 2001:db8::/32 192.0.2.100/32")...)
		}
	}
	own := derived(s)
	s.Choice = randomChoice(own)
	s.PreserveDestination = chance(own, 20)
	return s
}

// tenant is the namespace of a Service by its number: some are in another one.
func tenant(service int) string {
	if service < 5 {
		return "default"
	}
	return "other"
}

// derived returns a random source for one object: using it does not change the rest
// of the world.
func derived(object any) *rand.Rand {
	sum := fnv.New64a()
	fmt.Fprintf(sum, "%v", object)
	return NewRand(sum.Sum64())
}

func randomChoice(rng *rand.Rand) (c model.Choice) {
	if chance(rng, 20) {
		c.Scheduler = pick(rng, model.RoundRobin, model.LeastConnections, model.SourceHash, model.Random, model.Maglev)
	}
	if chance(rng, 20) {
		c.Spill = model.Spill{Above: pick(rng, 0, 1, 1.3, 4), Floor: rng.IntN(3)}
	}
	return c
}

func randomClusterIPs(rng *rand.Rand, i int) []netip.Addr {
	if chance(rng, 10) {
		i = rng.IntN(8) // an address that another Service may have
	}
	v4 := netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", 10+i))
	v6 := netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%d", 10+i))
	return pick(rng, []netip.Addr{v4}, []netip.Addr{v4, v6}, []netip.Addr{v6, v4}, []netip.Addr{v6})
}

func randomPorts(rng *rand.Rand) (ports []model.ServicePort) {
	for k := range 1 + rng.IntN(3) {
		p := model.ServicePort{
			Name: fmt.Sprintf("p%d", k), Port: pick[uint16](rng, 53, 80, 81, 443),
			Proto: pick(rng, model.TCP, model.TCP, model.UDP, model.SCTP),
		}
		if chance(rng, 70) {
			p.NodePort = uint16(30000 + rng.IntN(20))
		}
		ports = append(ports, p)
	}
	return ports
}

func randomSlice(rng *rand.Rand, service, number int) *model.Slice {
	s := &model.Slice{
		Name:    model.SliceName{Namespace: tenant(service), Name: fmt.Sprintf("s%d-%d", service, number)},
		Service: fmt.Sprintf("s%d", service),
		Family:  pick(rng, model.IPv4, model.IPv4, model.IPv6),
	}
	for k := range 3 {
		for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
			if chance(rng, 85) {
				s.Ports = append(s.Ports, model.SlicePort{Name: fmt.Sprintf("p%d", k), Proto: proto, Port: uint16(8080 + rng.IntN(2))})
			}
		}
	}
	for range rng.IntN(5) {
		s.Endpoints = append(s.Endpoints, randomEndpoint(rng, s.Family))
	}
	if own := derived(s.Ports); chance(own, 20) {
		s.Weighted, s.Weight = true, pick[uint16](own, 0, 1, 2, 3, 50, 65535)
	}
	if own := derived(s.Name); chance(own, 50) {
		names := make([]string, len(s.Endpoints))
		for i := range names {
			names[i] = pick(own, "", fmt.Sprintf("%s-%d", s.Service, i))
		}
		s.Pods = model.PackPods(names)
	}
	return s
}

func randomEndpoint(rng *rand.Rand, family model.Family) model.SliceEndpoint {
	node := 1 + rng.IntN(3)
	pod := fmt.Sprintf("10.244.%d.%d", node, 2+rng.IntN(4))
	own := fmt.Sprintf("192.0.2.%d", node)
	if family == model.IPv6 {
		pod, own = fmt.Sprintf("fd00:10:244:%d::%d", node, 2+rng.IntN(4)), fmt.Sprintf("2001:db8::%d", node)
	}
	if chance(rng, 10) {
		pod = own // on the host's network
	}
	e := model.SliceEndpoint{Addr: netip.MustParseAddr(pod), Node: fmt.Sprintf("node-%d", node)}
	if node > 1 {
		rng.IntN(100) // it decided about the node once: seeds keep their worlds
	}
	// Slices that disagree about an address would make hairpins ambiguous: modes know
	// them by the address alone, or by the Service.
	if pod == "10.244.3.5" || pod == "fd00:10:244:3::5" {
		e.Node = ""
	}
	e.State = pick(rng, model.Ready|model.Serving, model.Ready|model.Serving, model.Ready|model.Serving,
		model.Serving|model.Terminating, model.Terminating, model.Serving, 0)
	if chance(rng, 40) {
		e.Hints = &model.Hints{Zones: some(rng, 2, "zone-a", "zone-b")}
		if chance(rng, 30) {
			e.Hints.Nodes = some(rng, 1, "node-1", "node-2")
		}
	}
	return e
}
