// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// VFP models what Windows' virtual switch does with packets, given the load
// balancers of an HNS. It follows documented behaviour and what kube-proxy relies
// on; otherwise it assumes the less useful behaviour.
//
// rule: no-balancer external node-ports dsr
type VFP struct {
	HNS    *Emulator
	Host   *model.Host
	Uplink string // the interface to other machines
}

// Decide returns what happens to a packet, with every endpoint that it may reach.
func (v VFP) Decide(p oracle.Packet) oracle.Outcome {
	v.HNS.mu.Lock()
	defer v.HNS.mu.Unlock()
	lb, ok := v.match(p)
	if !ok {
		return oracle.Outcome{Fate: oracle.Pass}
	}
	out := oracle.Outcome{Fate: oracle.Forward}
	for _, id := range lb.HostComputeEndpoints {
		for _, c := range v.HNS.endpoints[strings.ToLower(id)].IpConfigurations {
			a, err := netip.ParseAddr(c.IpAddress)
			if err != nil || a.Is4() != p.Dst.Addr().Is4() {
				continue
			}
			leaves := !slices.Contains(v.Host.IPs, a)
			// The node's own connections have its address, translated or not.
			hidden := lb.Flags&hns.FlagDSR == 0 || slices.Contains(v.Host.IPs, p.Src)
			out.Endpoints = append(out.Endpoints, oracle.Target{
				Addr: netip.AddrPortFrom(a, lb.PortMappings[0].InternalPort), SNAT: leaves && hidden,
			})
		}
	}
	return out
}

// match finds the load balancer for a packet: by its VIP, else as a node port.
func (v VFP) match(p oracle.Packet) (hns.LoadBalancer, bool) {
	own, vip := slices.Contains(v.Host.IPs, p.Dst.Addr()), p.Dst.Addr().String()
	for _, nodePort := range []bool{false, true} {
		for _, lb := range v.HNS.balancers {
			if (len(lb.FrontendVIPs) == 0) != nodePort || !v.listens(lb, p) {
				continue
			}
			switch {
			case nodePort && (!own || p.Iface == "" || lb.Flags&hns.FlagIPv6 != 0 != p.Dst.Addr().Is6()):
			case !nodePort && !slices.Contains(lb.FrontendVIPs, vip):
			default:
				return lb, true
			}
		}
	}
	return hns.LoadBalancer{}, false
}

// listens reports whether a load balancer serves the packet's port and origin.
func (v VFP) listens(lb hns.LoadBalancer, p oracle.Packet) bool {
	m := lb.PortMappings[0]
	if m.Protocol != uint32(p.Proto) || m.ExternalPort != p.Dst.Port() {
		return false
	}
	return p.Iface != v.Uplink || m.Flags&hns.FlagVIPExternalIP != 0
}
