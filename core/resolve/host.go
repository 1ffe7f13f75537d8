// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Host merges the configuration with this machine's Node object, which is nil
// while it is not known, with the ranges of cluster IPs, and with the facts of the
// machine itself.
func Host(c *config.Config, node *model.Node, cidrs []*model.ServiceCIDR, machine model.Machine) *model.Host {
	if node == nil {
		node = standIn(c, machine)
	}
	h := &model.Host{Name: c.NodeName, Zone: node.Zone, IPs: ownIPs(c.NodeIP, node.IPs), PodCIDRs: node.PodCIDRs, MasqueradeAll: c.MasqueradeAll, Salt: machine.Salt}
	h.Pods = pods(c, node)
	h.NodePorts = nodePorts(c, h)
	h.Guard = guard(c, node, h.IPs, machine)
	h.ServiceCIDRs, _ = rangesFor(c, node, h.Guard.NodeIPs, cidrs)
	h.Guard.Reserved = usesReserved(c, node, h)
	return h
}

// standIn takes the place of a Node object that is not known. An API server will have one:
// until then nothing is known of it. Manifests need not have one: the addresses are then
// those of the machine, as far as a Node object would have them.
func standIn(c *config.Config, machine model.Machine) *model.Node {
	n := &model.Node{Name: c.NodeName}
	if c.Manifests == "" {
		return n
	}
	for _, f := range model.Families() {
		n.IPs = append(n.IPs, nodeAddresses(machine.Addresses, f, c.ClusterCIDRs)...)
	}
	return n
}

// nodeAddresses are those addresses of a machine that its Node object would have: not those of
// bridges and tunnels of pods, and not those that move between nodes, unless there are no others.
func nodeAddresses(all []model.LocalAddress, f model.Family, pods []netip.Prefix) (ips []netip.Addr) {
	all = slices.DeleteFunc(slices.Clone(all), func(a model.LocalAddress) bool { return model.FamilyOf(a.Prefix.Addr()) != f })
	outside := slices.DeleteFunc(slices.Clone(all), func(a model.LocalAddress) bool { return model.Contains(pods, a.Prefix.Addr()) })
	for _, some := range [][]model.LocalAddress{onNetworks(outside), outside, onNetworks(all), all} {
		for _, a := range some {
			ips = append(ips, a.Prefix.Addr())
		}
		if len(ips) > 0 {
			break
		}
	}
	return ips
}

// ownIPs puts the configured primary address first, if there is one.
func ownIPs(primary netip.Addr, ips []netip.Addr) []netip.Addr {
	if !primary.IsValid() || primary.IsUnspecified() {
		return ips
	}
	all := []netip.Addr{primary}
	for _, ip := range ips {
		if ip != primary {
			all = append(all, ip)
		}
	}
	return all
}

// HostProblems reports settings without effect for lack of this
// machine's Node object, which is nil while it is not known, or of a field that it must
// have, and ranges of cluster IPs without effect. A zone that is not known is no
// problem: hints are not followed then. That node ports have no address is one only if some
// Service may have a node port.
func HostProblems(c *config.Config, node *model.Node, cidrs []*model.ServiceCIDR, machine model.Machine, nodePorts bool) (ps []model.Problem) {
	why := model.WhyInvalid
	if node == nil {
		why, node = model.WhyNoNode, standIn(c, machine)
	}
	problem := func(detail string) {
		ps = append(ps, model.Problem{Object: "Node " + node.Name, Why: why, Detail: detail})
	}
	if nodePorts && c.NodePorts.Primary && !c.NodePorts.All && len(ownIPs(c.NodeIP, node.IPs)) == 0 {
		problem("nodePorts are not served: nodePortAddresses is primary, and the Node has no address")
	}
	if c.DetectLocal == config.DetectNodeCIDR && len(node.PodCIDRs) == 0 {
		problem("local pods cannot be detected: NodeCIDR needs a podCIDR, and the Node has none")
	}
	own := ownAddresses(ownIPs(c.NodeIP, node.IPs), machine.Addresses)
	ps = append(ps, familyProblems(c, node)...)
	_, leftOut := rangesFor(c, node, own, cidrs)
	return append(ps, leftOut...)
}

// familyProblems reports which settings name addresses of a family only that this node
// does not have: they do nothing, and the family that it has is served without
// them. Where local pods are detected by them kube-proxy exits with an error
// (checkBadIPConfig of cmd/kube-proxy); here the node is unfit for traffic.
func familyProblems(c *config.Config, node *model.Node) (ps []model.Problem) {
	ips := ownIPs(c.NodeIP, node.IPs)
	if len(ips) == 0 {
		return nil
	}
	for _, s := range []struct {
		name     string
		prefixes []netip.Prefix
		unfit    bool
	}{
		{"clusterCIDR", c.ClusterCIDRs, c.DetectLocal == config.DetectClusterCIDR},
		{"podCIDRs", node.PodCIDRs, c.DetectLocal == config.DetectNodeCIDR},
		{"nodePortAddresses", c.NodePorts.Prefixes, false},
	} {
		had := func(p netip.Prefix) bool {
			return slices.ContainsFunc(ips, func(a netip.Addr) bool { return a.Is4() == p.Addr().Is4() })
		}
		if len(s.prefixes) > 0 && !slices.ContainsFunc(s.prefixes, had) {
			ps = append(ps, model.Problem{
				Object: "Node " + node.Name, Why: model.WhyOtherFamily, Unfit: s.unfit,
				Detail: fmt.Sprintf("%s %v, the node's address is %s", s.name, s.prefixes, ips[0]),
			})
		}
	}
	return ps
}

// pods is the detect-local setting in terms of packets. Of several prefixes of
// one family the first counts, as in kube-proxy.
func pods(c *config.Config, node *model.Node) model.PodMatch {
	switch c.DetectLocal {
	case config.DetectClusterCIDR:
		return model.PodMatch{CIDRs: firstOfEach(c.ClusterCIDRs)}
	case config.DetectNodeCIDR:
		return model.PodMatch{CIDRs: firstOfEach(node.PodCIDRs)}
	case config.DetectBridgeInterface:
		return model.PodMatch{Interface: c.PodBridge}
	case config.DetectInterfacePrefix:
		return model.PodMatch{Prefix: c.PodInterfacePrefix}
	}
	return model.PodMatch{}
}

func firstOfEach(ps []netip.Prefix) (firsts []netip.Prefix) {
	var seen [2]bool
	for _, p := range ps {
		if f := model.FamilyOf(p.Addr()); !seen[f] {
			seen[f] = true
			firsts = append(firsts, p.Masked())
		}
	}
	return firsts
}

// nodePorts is the nodePortAddresses setting. "primary" means the node's main
// address of each family; as long as that is unknown no address answers, where
// kube-proxy would open all of them. A list that names prefixes of one family
// only leaves the other family open, as kube-proxy does and as documented for
// the field.
func nodePorts(c *config.Config, h *model.Host) model.NodePortMatch {
	var m model.NodePortMatch
	for _, f := range model.Families() {
		m.Prefixes = append(m.Prefixes, nodePortPrefixes(&c.NodePorts, h, f)...)
	}
	m.Prefixes = model.Canonical(m.Prefixes)
	if c.Mode != config.NFTables || !c.Gates.Off(config.GateLocalhost) {
		for _, f := range model.Families() {
			m.Loopback[f] = c.NodePorts.OnLoopbackOf(f == model.IPv4)
		}
	}
	m.LoopbackTCPOnly = c.Mode == config.NFTables
	return m
}

func nodePortPrefixes(n *config.NodePorts, h *model.Host, f model.Family) (ps []netip.Prefix) {
	if n.Primary {
		if ip, ok := h.Primary(f); ok {
			ps = append(ps, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	if n.Localhost {
		ps = append(ps, f.Loopbacks())
	}
	for _, p := range n.Prefixes {
		if model.FamilyOf(p.Addr()) == f {
			ps = append(ps, p.Masked())
		}
	}
	if n.All || len(ps) == 0 && !n.Primary && !n.Localhost {
		return []netip.Prefix{netip.PrefixFrom(f.Unspecified(), 0)}
	}
	return ps
}

// rangesFor finds the ranges in which there can be nothing but cluster IPs. The
// API server lets a ServiceCIDR (KEP-1880) overlap with the networks of nodes and
// pods, and there are clouds whose defaults do: to drop what no Service has would
// cut those off. So a range that has an address of this node or its pods in it is
// left out, with a problem, and so are all while the node's address is not known.
func rangesFor(c *config.Config, node *model.Node, ips []netip.Addr, cidrs []*model.ServiceCIDR) (alone []netip.Prefix, problems []model.Problem) {
	for _, cidr := range cidrs {
		for _, p := range cidr.CIDRs {
			other := overlap(p, ips, slices.Concat(c.ClusterCIDRs, node.PodCIDRs))
			if other == "" {
				alone = append(alone, p)
				continue
			}
			problems = append(problems, model.Problem{
				Object: "ServiceCIDR " + cidr.Name, Where: cidr.Where, Why: model.WhySharedRange, Detail: fmt.Sprintf("%s: %s", p, other),
			})
		}
	}
	return model.Canonical(alone), problems
}

// overlap reports what else is in a range; empty for nothing.
func overlap(p netip.Prefix, ips []netip.Addr, pods []netip.Prefix) string {
	if i := slices.IndexFunc(ips, p.Contains); i >= 0 {
		return fmt.Sprintf("contains %s, an address of this node", ips[i])
	}
	if i := slices.IndexFunc(pods, p.Overlaps); i >= 0 {
		return fmt.Sprintf("overlaps the pod CIDR %s", pods[i])
	}
	family := model.FamilyOf(p.Addr())
	if !slices.ContainsFunc(ips, func(a netip.Addr) bool { return model.FamilyOf(a) == family }) {
		return fmt.Sprintf("this node's %s address is unknown and might be in it", family)
	}
	return ""
}
