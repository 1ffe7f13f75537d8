// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// guard collects what Services must leave alone on this machine.
func guard(c *config.Config, node *model.Node, ips []netip.Addr, machine model.Machine) model.Guard {
	g := model.Guard{
		NodeIPs:        ownAddresses(ips, machine.Addresses),
		FixedIPs:       ownAddresses(ips, onNetworks(machine.Addresses)),
		Broadcasts:     broadcasts(machine),
		ProtectedPorts: ownPorts(c),
		Allowed:        model.Canonical(slices.Clone(c.ExternalIPs.Allowed)), AllowedOnly: c.ExternalIPs.Only,
		Listeners: machine.Listeners,
	}
	g.APIServers = slices.SortedFunc(slices.Values(machine.APIServers), netip.AddrPort.Compare)
	g.APIServers = slices.Compact(g.APIServers)
	g.Pods = podRanges(c, node, ips)
	return g
}

// ownAddresses are those of the Node object and those that the machine has.
func ownAddresses(ips []netip.Addr, machine []model.LocalAddress) []netip.Addr {
	all := slices.Clone(ips)
	for _, a := range machine {
		all = append(all, a.Prefix.Addr())
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// onNetworks are the addresses that the machine is on a network with. Without one,
// of an IPv4 or IPv6 address alone (/32, /128), they are what kube-vip and keepalived
// bind to one node at a time, unless the Node object has them.
func onNetworks(all []model.LocalAddress) []model.LocalAddress {
	return slices.DeleteFunc(slices.Clone(all), func(a model.LocalAddress) bool { return a.Prefix.IsSingleIP() })
}

// broadcasts are the last addresses of the IPv4 networks that the machine is in.
// Those of one or two addresses have none (RFC 3021).
func broadcasts(machine model.Machine) (all []netip.Addr) {
	for _, a := range machine.Addresses {
		if p := a.Prefix; p.Addr().Is4() && p.Bits() < p.Addr().BitLen()-1 {
			all = append(all, model.Last(p))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// The TCP ports that no node can spare: to lose one locks the administrator out,
// or takes the node from the cluster.
const (
	sshPort     = 22
	kubeletPort = 10250
)

// ownPorts are those and the ones of this proxy's servers.
func ownPorts(c *config.Config) []uint16 {
	all := []uint16{sshPort, kubeletPort}
	for _, address := range []string{c.HealthAddress, c.HTTPAddress} {
		if _, port, err := net.SplitHostPort(address); err == nil {
			if n, err := strconv.ParseUint(port, 10, 16); err == nil && n != 0 {
				all = append(all, uint16(n))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// rolePorts are TCP ports that nodes of a control plane, and the network plugins of all nodes, are known
// to listen on. A Service does not get them on the node's own addresses while their programs restart,
// either.
var rolePorts = [...]struct{ first, last uint16 }{
	{53, 53}, {179, 179}, // DNS, BGP
	{2379, 2381}, {6443, 6443}, // etcd, the API server
	{10248, 10260}, // kubelet, kube-proxy, the controllers
}

// ownRole reports whether a TCP port is one of the node's own, whether or not it is in use.
func ownRole(g *model.Guard, port uint16) bool {
	for _, r := range rolePorts {
		if r.first <= port && port <= r.last {
			return true
		}
	}
	return slices.Contains(g.ProtectedPorts, port)
}

// podRanges are the ranges in which there are pods alone. Clouds whose pods share
// a network with nodes and load balancers give that as the cluster's or the node's:
// a range counts when the Node object's addresses of its family are known and outside.
// Those of bridges and tunnels, which no Node object has, are among the pods'.
func podRanges(c *config.Config, node *model.Node, ips []netip.Addr) (ranges []netip.Prefix) {
	for _, p := range slices.Concat(node.PodCIDRs, c.ClusterCIDRs) {
		same := func(a netip.Addr) bool { return model.FamilyOf(a) == model.FamilyOf(p.Addr()) }
		if slices.ContainsFunc(ips, same) && !slices.ContainsFunc(ips, p.Contains) {
			ranges = append(ranges, p)
		}
	}
	return model.Canonical(ranges)
}

// reserved is class E (RFC 1112, section 4). Most of the world drops it, but there
// are clouds that have pods or Services in it.
var reserved = netip.PrefixFrom(netip.AddrFrom4([4]byte{240, 0, 0, 0}), 4)

func usesReserved(c *config.Config, node *model.Node, h *model.Host) bool {
	inside := func(p netip.Prefix) bool { return reserved.Overlaps(p) && p.Bits() >= reserved.Bits() }
	return slices.ContainsFunc(slices.Concat(node.PodCIDRs, h.ServiceCIDRs, c.ClusterCIDRs), inside) ||
		slices.ContainsFunc(h.Guard.NodeIPs, reserved.Contains)
}

func contains(ps []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
}

func containsSorted[A interface{ Compare(A) int }](sorted []A, a A) bool {
	_, found := slices.BinarySearchFunc(sorted, a, A.Compare)
	return found
}
