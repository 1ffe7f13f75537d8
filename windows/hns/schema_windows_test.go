// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/Microsoft/hcsshim/hcn"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// TestSchema reads what is sent to HNS with the types of Microsoft's hcsshim (package
// hcn, schema 2.0), strictly: a field that they do not have, or of another type, is
// not in HNS' schema. It is run by ci/wine, as the types are for Windows alone.
func TestSchema(t *testing.T) {
	node := netip.MustParseAddr("192.0.2.1")
	objects := map[hns.Key]hns.Value{
		{Kind: hns.KindNode, Addr: netip.IPv4Unspecified()}:                   {Node: node},
		{Kind: hns.KindSource, Addr: netip.IPv4Unspecified()}:                 {},
		{Kind: hns.KindRemote, Addr: netip.MustParseAddr("10.244.2.2")}:       {},
		{Kind: hns.KindRemote, Addr: netip.MustParseAddr("fd00:10:244:2::2")}: {},
		{Kind: hns.KindVIP, Addr: netip.MustParseAddr("10.96.0.10")}:          {Node: node},
		balancerKey("10.96.0.10"):                                             balancer(hns.Balancer{DSR: true}), balancerKey("0.0.0.0"): balancer(hns.Balancer{External: true}),
		balancerKey("203.0.113.1"):    balancer(hns.Balancer{External: true, DSR: true, PreserveDestination: true, SessionAffinity: true}),
		balancerKey("fd00:10:96::10"): balancer(hns.Balancer{}),
	}
	for _, overlay := range []bool{false, true} {
		var sent struct{ Endpoints, LoadBalancers []json.RawMessage }
		strictly(t, json.RawMessage(hns.Script(objects, overlay)), &sent)
		if len(sent.Endpoints) != 4 || len(sent.LoadBalancers) != 4 {
			t.Fatalf("%d endpoints, %d load balancers", len(sent.Endpoints), len(sent.LoadBalancers))
		}
		for _, text := range sent.Endpoints {
			var e hcn.HostComputeEndpoint
			strictly(t, text, &e)
			for _, p := range e.Policies {
				strictly(t, p.Settings, &hcn.ProviderAddressEndpointPolicySetting{})
			}
			if e.SchemaVersion != hcn.V2SchemaVersion() || e.Flags&^hcn.EndpointFlagsRemoteEndpoint != 0 {
				t.Errorf("schema or flags: %s", text)
			}
		}
		for _, text := range sent.LoadBalancers {
			var lb hcn.HostComputeLoadBalancer
			strictly(t, text, &lb)
			const ipv6, external = 2, 16 // kube-proxy's, not hcsshim's
			known := hcn.LoadBalancerPortMappingFlagsLocalRoutedVIP | hcn.LoadBalancerPortMappingFlagsUseMux | hcn.LoadBalancerPortMappingFlagsPreserveDIP | external
			if lb.SchemaVersion != hcn.V2SchemaVersion() || lb.Flags&^(hcn.LoadBalancerFlagsDSR|ipv6) != 0 || lb.PortMappings[0].Flags&^known != 0 {
				t.Errorf("schema or flags: %s", text)
			}
		}
	}
}

func balancerKey(addr string) hns.Key {
	return hns.Key{Kind: hns.KindBalancer, Proto: model.TCP, Port: 80, Addr: netip.MustParseAddr(addr)}
}

func balancer(b hns.Balancer) hns.Value {
	b.Port, b.Endpoints = 8080, []hns.Target{{Addr: netip.MustParseAddr("10.244.2.2")}}
	return hns.Value{Node: netip.MustParseAddr("192.0.2.1"), Balancer: &b}
}

func strictly(t *testing.T, text json.RawMessage, into any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}
