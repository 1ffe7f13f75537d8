// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// Address ranges of the cluster, each in both families.
var (
	machineNets = [2]netip.Prefix{netip.MustParsePrefix("172.18.0.0/16"), netip.MustParsePrefix("fd00:172:18::/64")}
	podNets     = [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}
	serviceNets = [2]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	// Of load balancers: no address of a node's network, as the world outside of a cluster is.
	balancerNets = [2]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:192::/112")}
)

const (
	dnsAddress = "10.96.0.10"
	apiAddress = "10.96.0.1"

	controlName = "control"
	maxNodes    = 12
)

// shape is what is asked for.
type shape struct {
	Nodes  int  // machines that run pods
	Zones  int  // over which these are spread
	Single bool // IPv4 alone
}

// node is a machine of the plan: the control machine, which is number 0, or a node.
type node struct {
	Name string
	Zone string
	Addr []netip.Addr   // of the machine
	Pods []netip.Prefix // of its pods
	Veth string         // its link at the bridge
}

// plan is the layout of a cluster: all that follows from its shape.
type plan struct {
	shape
	Control node
	Workers []node
}

func newPlan(s shape) (plan, error) {
	switch {
	case s.Nodes < 1 || s.Nodes > maxNodes:
		return plan{}, fmt.Errorf("%d nodes: from 1 to %d are possible", s.Nodes, maxNodes)
	case s.Zones < 1:
		return plan{}, fmt.Errorf("%d zones: there is at least one", s.Zones)
	}
	p := plan{shape: s, Control: node{Name: controlName}}
	p.Control.Addr = p.each(machineNets, func(net netip.Prefix) netip.Addr { return nth(net, 10) })
	for i := 1; i <= s.Nodes; i++ {
		n := node{Name: fmt.Sprintf("node-%d", i), Zone: fmt.Sprintf("zone-%d", (i-1)%s.Zones+1), Veth: fmt.Sprintf("node%d", i)}
		n.Addr = p.each(machineNets, func(net netip.Prefix) netip.Addr { return nth(net, 10+i) })
		n.Pods = p.pods(i)
		p.Workers = append(p.Workers, n)
	}
	return p, nil
}

// machines are all machines, the control machine first.
func (p plan) machines() []node { return append([]node{p.Control}, p.Workers...) }

// names are those of the nodes.
func (p plan) names() (all []string) {
	for _, w := range p.Workers {
		all = append(all, w.Name)
	}
	return all
}

// families is how many address families the cluster has.
func (p plan) families() int {
	if p.Single {
		return 1
	}
	return 2
}

// each returns an address of each network that the cluster uses.
func (p plan) each(nets [2]netip.Prefix, of func(netip.Prefix) netip.Addr) (all []netip.Addr) {
	for _, net := range nets[:p.families()] {
		all = append(all, of(net))
	}
	return all
}

// pods are the networks of the pods of the i-th node: 10.244.i.0/24 and fd00:10:244:i::/64.
func (p plan) pods(i int) []netip.Prefix {
	four := podNets[0].Addr().As4()
	four[2] = byte(i)
	six := podNets[1].Addr().As16()
	six[7] = byte(i)
	all := []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(four), 24), netip.PrefixFrom(netip.AddrFrom16(six), 64)}
	return all[:p.families()]
}

// nth returns the i-th address of a network, for i up to 255.
func nth(net netip.Prefix, i int) netip.Addr {
	b := net.Masked().Addr().AsSlice()
	b[len(b)-1] = byte(i)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// ranges joins networks with commas, as Kubernetes' flags take them.
func (p plan) ranges(nets [2]netip.Prefix) string { return join(nets[:p.families()]) }

func join[T fmt.Stringer](all []T) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}

// controlLinks are commands of ip(8) for the control machine's network, where the bridge is; pids are
// those of the nodes' processes 1. What has no other way goes into a device that loses it, as packets
// to nowhere are lost in a real network: an unreachable route would answer.
func (p plan) controlLinks(pids []int) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("link set lo up")
	add("link add br0 type bridge")
	add("link set br0 up")
	for i, a := range p.Control.Addr {
		add("addr add %s/%d dev br0%s", a, machineNets[i].Bits(), noDAD(a))
	}
	add("link add nowhere type veth peer name lost")
	add("link set lost up")
	add("link set nowhere arp off up")
	for _, a := range p.Control.Addr {
		add("route add %s dev nowhere", everywhere(a))
	}
	for i, w := range p.Workers {
		add("link add %s type veth peer name eth0 netns %d", w.Veth, pids[i])
		add("link set %s master br0 up", w.Veth)
		for f, pods := range w.Pods {
			add("route add %s via %s", pods, w.Addr[f])
		}
	}
	// The client of load balancers is outside of the nodes' networks.
	for _, a := range p.each(balancerNets, func(net netip.Prefix) netip.Addr { return nth(net, 254) }) {
		add("addr add %s/%d dev lo%s", a, a.BitLen(), noDAD(a))
	}
	return lines
}

// nodeLinks are those for a node, whose end of the link is there already.
func (p plan) nodeLinks(n node) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("link set lo up")
	for i, a := range n.Addr {
		add("addr add %s/%d dev eth0%s", a, machineNets[i].Bits(), noDAD(a))
	}
	add("link set eth0 up")
	for _, a := range p.Control.Addr {
		add("route add %s via %s", everywhere(a), a)
	}
	for _, w := range p.Workers {
		if w.Name == n.Name {
			continue
		}
		for f, pods := range w.Pods {
			add("route add %s via %s", pods, w.Addr[f])
		}
	}
	return lines
}

// masquerade is a script of nft(8) for a node: what pods send to other than pods gets the node's address, as with most
// network plug-ins. A node would else take pods of other nodes for its own, as it knows pods by the cluster's network:
// such a pod that asks for a node port gets what is meant for the node's own pods, and where the kernel
// translates, the answer comes from an address that the pod did not ask.
func (p plan) masquerade() string {
	script := "table inet cluster {\n\tchain leaving {\n\t\ttype nat hook postrouting priority srcnat;\n"
	for i, family := range []string{"ip", "ip6"}[:p.families()] {
		script += fmt.Sprintf("\t\t%[1]s saddr %[2]s %[1]s daddr != %[2]s masquerade\n", family, podNets[i])
	}
	return script + "\t}\n}\n"
}

// everywhere is the network of all addresses of an address' family.
func everywhere(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// noDAD makes an IPv6 address usable at once.
func noDAD(a netip.Addr) string {
	if a.Is4() {
		return ""
	}
	return " nodad"
}
