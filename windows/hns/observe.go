// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// keysOf returns the frontends of a load balancer, and whether it has exactly
// one: owned ones always do.
func keysOf(lb LoadBalancer) (keys []Key, single bool) {
	for _, a := range vipsOf(lb) {
		for _, m := range lb.PortMappings {
			if m.Protocol > 255 {
				continue // no protocol of IP
			}
			keys = append(keys, Key{KindBalancer, model.Proto(m.Protocol), m.ExternalPort, a})
		}
	}
	return keys, len(keys) == 1 && len(lb.FrontendVIPs) <= 1 && len(lb.PortMappings) == 1
}

// vipsOf returns the addresses of a load balancer: the unspecified one of its family for
// those of the node.
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

// surplusKey names a load balancer of ours that is not of one frontend, by the first of them; without
// any, which HNS may make of one (kubernetes#141488), by its address.
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

// differs lists the settings in which an installed load balancer is not as wanted.
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

// beyondEndpoints reports whether two load balancers differ in more than what
// HNS can change in place.
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

// endpointValue returns the object of a remote endpoint that is as it should be.
func (f facts) endpointValue(k Key) (v Value) {
	if k.Kind == KindVIP {
		v.Node = f.node[model.FamilyOf(k.Addr)]
	}
	return v
}

// readEndpoint returns the object that an owned remote endpoint is.
func readEndpoint(f facts, r retries, k Key, e Endpoint) Value {
	v := f.endpointValue(k)
	switch want := f.endpoint(k, v); {
	case !sameMAC(e, want):
		v.Drift = "MAC address " + e.MacAddress
	case !sameProvider(e, want):
		v.Drift = "behind " + providerOf(e).String()
	case r.repairable(k, e.degraded()):
		v.Drift = "degraded"
	}
	return v
}

// equivalent reports whether an endpoint that others have made leads where the one of a
// key would.
func equivalent(f facts, r retries, k Key, v Value, e Endpoint) bool {
	want := f.endpoint(k, v)
	if k.Kind == KindVIP && !sameMAC(e, want) {
		return false
	}
	return !e.remote() || sameProvider(e, want) && !r.repairable(k, e.degraded())
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
