// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"strings"
)

// routingChecks are about whether packets reach the rules and endpoints at all.
func routingChecks() []check {
	return []check{
		{"forwarding-ipv4", "linux", func(f *Facts) Check { return forwarding(f, "net/ipv4/ip_forward", Fail) }},
		{"forwarding-ipv6", "linux", func(f *Facts) Check {
			return forwarding(f, "net/ipv6/conf/all/forwarding", map[bool]Level{true: Fail, false: Note}[f.IPv6])
		}},
		{"bridge-netfilter", "linux", func(f *Facts) Check { return bridges(f, "net/bridge/bridge-nf-call-iptables", true) }},
		{"bridge-netfilter-ipv6", "linux", func(f *Facts) Check { return bridges(f, "net/bridge/bridge-nf-call-ip6tables", f.IPv6) }},
		{"rp-filter", "linux", reversePath},
		{"route-localnet", "linux", localnet},
		{"default-route-ipv4", "linux", func(f *Facts) Check { return defaultRoute(f, 0, "IPv4") }},
		{"default-route-ipv6", "linux", func(f *Facts) Check { return defaultRoute(f, 1, "IPv6") }},
		{"ipv6", "linux", ipv6},
		{"mtu", "", mtu},
		{"mtu-overlay", "", overlay},
		{"loopback", "linux", loopback},
		{"arp-ignore", "linux", arpIgnore},
		{"ipvs-conntrack", "linux", ipvsConntrack},
	}
}

func forwarding(f *Facts, sysctl string, missing Level) Check {
	v, known := f.sysctl(sysctl)
	name := strings.ReplaceAll(sysctl, "/", ".")
	switch {
	case !known:
		return Check{}
	case v != 0:
		return ok(fmt.Sprintf("%s is %d", name, v))
	}
	return Check{
		Level: missing, Found: name + " is 0: packets for endpoints on other nodes, and from pods, are not forwarded", Fix: "sysctl -w " + name + "=1",
	}
}

// bridges: where br_netfilter does not call the rules, packets between pods of one
// bridge never meet them, and answers bypass them.
func bridges(f *Facts, sysctl string, used bool) Check {
	name := strings.ReplaceAll(sysctl, "/", ".")
	v, known := f.sysctl(sysctl)
	switch {
	case !used:
		return Check{}
	case !known:
		return note("br_netfilter is not loaded; it is needed where pods of this node share a bridge", "modprobe br_netfilter")
	case v == 1:
		return ok("bridged packets meet the rules")
	}
	return warn("bridged packets bypass the rules: a pod that reaches itself or a neighbour through a Service gets no answer", "sysctl -w "+name+"=1")
}

// reversePath: with the strict filter (RFC 3704) a packet is dropped that arrives by
// another interface than answers would leave by. Such routes are usual where a node
// has several uplinks.
func reversePath(f *Facts) Check {
	all, known := f.sysctl("net/ipv4/conf/all/rp_filter")
	if !known {
		return Check{}
	}
	var strict []string
	uplinks := 0
	for _, i := range f.Interfaces {
		if !i.Uplink {
			continue
		}
		uplinks++
		if own, _ := f.sysctl("net/ipv4/conf/" + i.Name + "/rp_filter"); max(all, own) == 1 { // the kernel takes the larger
			strict = append(strict, i.Name)
		}
	}
	switch {
	case len(strict) == 0:
		return ok("no uplink has strict rp_filter")
	case uplinks < 2:
		return ok("the reverse path filter is strict on the only uplink: " + strict[0])
	}
	return warn("the reverse path filter is strict on "+strings.Join(strict, ", ")+", and there are several uplinks: packets for node ports that arrive by the other one are dropped",
		"sysctl -w net.ipv4.conf.all.rp_filter=2")
}

func localnet(f *Facts) Check {
	v, known := f.sysctl("net/ipv4/conf/all/route_localnet")
	switch {
	case !known:
		return Check{}
	case v == 0:
		return ok("addresses of 127.0.0.0/8 are not routed")
	}
	return note("net.ipv4.conf.all.route_localnet is 1: without the rules of a proxy, neighbours reach what listens on loopback alone (CVE-2020-8558)",
		"tandem does not need it, not even for node ports on 127.0.0.1: sysctl -w net.ipv4.conf.all.route_localnet=0")
}

// defaultRoute: a process of the node that connects to a cluster IP needs a route to
// it before any rule is asked.
func defaultRoute(f *Facts, family int, name string) Check {
	if f.Interfaces == nil || family == 1 && !f.IPv6 {
		return Check{}
	}
	return either(ok("there is a default route for "+name),
		warn("no default route for "+name+": processes of this node get \"network is unreachable\" for cluster IPs", "add a default route, or one for the range of cluster IPs: ip route add CIDR dev INTERFACE"),
		f.Routes[family])
}

func ipv6(f *Facts) Check {
	v, known := f.sysctl("net/ipv6/conf/all/disable_ipv6")
	off := known && v == 1
	switch {
	case !known && f.Sysctls["net/ipv4/ip_forward"] == "":
		return Check{}
	case f.IPv6 && (off || !known):
		return fail("Services have IPv6 addresses, and IPv6 is off in this kernel or namespace", "sysctl -w net.ipv6.conf.all.disable_ipv6=0, or boot without ipv6.disable=1")
	case off || !known:
		return note("IPv6 is off; Services have no IPv6 addresses here", "")
	}
	return ok("IPv6 is on")
}

// minMTU is the least that IPv6 allows (RFC 8200, section 5).
const minMTU = 1280

func mtu(f *Facts) Check {
	var small []string
	for _, i := range f.Interfaces {
		if i.MTU > 0 && i.MTU < minMTU {
			small = append(small, fmt.Sprintf("%s (%d)", i.Name, i.MTU))
		}
	}
	if f.Interfaces == nil {
		return Check{}
	}
	return either(ok(fmt.Sprintf("%d interfaces have an MTU of at least %d", len(f.Interfaces), minMTU)),
		warn("MTU below 1280: no IPv6, IPv4 is fragmented: "+strings.Join(small, ", "), "ip link set dev INTERFACE mtu 1500, or what the network allows"), len(small) == 0)
}

// overhead is what tunnels over IPv4 add to a packet: Ethernet, IP, UDP and VXLAN are 50,
// IP in IP is 20, WireGuard 60.
func overhead(kind string) int {
	return map[string]int{"vxlan": 50, "geneve": 50, "ipip": 20, "wireguard": 60}[kind]
}

func overlay(f *Facts) Check {
	uplink := 0
	for _, i := range f.Interfaces {
		if i.Uplink && (uplink == 0 || i.MTU < uplink) {
			uplink = i.MTU
		}
	}
	var large []string
	tunnels := 0
	for _, i := range f.Interfaces {
		if extra := overhead(i.Kind); extra > 0 && uplink > 0 {
			tunnels++
			if i.MTU+extra > uplink {
				large = append(large, fmt.Sprintf("%s (%s, %d)", i.Name, i.Kind, i.MTU))
			}
		}
	}
	if tunnels == 0 {
		return Check{}
	}
	return either(ok("the overlay MTU fits the uplink MTU"),
		warn(fmt.Sprintf("MTU of %s exceeds the uplink's (%d): small requests work, large answers hang", strings.Join(large, ", "), uplink),
			"set the MTU in the configuration of the network plugin: that of the uplink less 50 for VXLAN, 20 for IP in IP, 60 for WireGuard"), len(large) == 0)
}

func loopback(f *Facts) Check {
	for _, i := range f.Interfaces {
		if i.Name == "lo" {
			return ok("lo is up")
		}
	}
	if f.Interfaces == nil {
		return Check{}
	}
	return fail("lo is down: health checks and node ports on 127.0.0.1 fail", "ip link set dev lo up")
}

// arpIgnore: in IPVS mode Services' addresses are on an interface of every node, so
// that every node answers ARP for those of load balancers.
func arpIgnore(f *Facts) Check {
	if f.Mode != "ipvs" {
		return Check{}
	}
	ignore, known1 := f.sysctl("net/ipv4/conf/all/arp_ignore")
	announce, known2 := f.sysctl("net/ipv4/conf/all/arp_announce")
	if !known1 || !known2 {
		return Check{}
	}
	return either(ok("ARP is answered for addresses of the interface asked on alone"),
		note("in IPVS mode all nodes answer ARP for load balancer IPs; load balancers that announce IPs by ARP (MetalLB) need strict ARP", "set ipvs.strictARP: true"),
		ignore >= 1 && announce >= 2)
}

// ipvsConntrack: what IPVS does not track gets no SNAT.
func ipvsConntrack(f *Facts) Check {
	v, known := f.sysctl("net/ipv4/vs/conntrack")
	if f.Mode != "ipvs" || !known {
		return Check{}
	}
	return either(ok("IPVS has its connections tracked"),
		fail("net.ipv4.vs.conntrack is 0: connections through IPVS get no SNAT, and answers from other nodes are lost", "sysctl -w net.ipv4.vs.conntrack=1, or restart tandem"), v == 1)
}
