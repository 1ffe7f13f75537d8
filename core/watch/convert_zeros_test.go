// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"
)

// TestLeadingZeros has addresses as old objects have them: they are read as
// kube-proxy reads them, and said.
func TestLeadingZeros(t *testing.T) {
	s, problems := Service(&corev1.Service{
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "010.096.000.001",
			ExternalIPs: []string{"198.018.0.1", "198.18.0.1"}, LoadBalancerSourceRanges: []string{" 010.0.0.0/8"},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.010"}}}},
	})
	expect(t, problems,
		"Invalid: spec.clusterIP: 010.096.000.001 (leading zeros, read as 10.96.0.1)",
		"Invalid: spec.externalIPs[0]: 198.018.0.1 (leading zeros, read as 198.18.0.1)",
		"Invalid: spec.loadBalancerSourceRanges[0]: 010.0.0.0/8 (leading zeros, read as 10.0.0.0/8)",
		"Invalid: status.loadBalancer.ingress[0].ip: 203.0.113.010 (leading zeros, read as 203.0.113.10)")
	if s.ClusterIPs[0] != netip.MustParseAddr("10.96.0.1") || len(s.ExternalIPs) != 1 || s.LoadBalancerIPs[0] != netip.MustParseAddr("203.0.113.10") ||
		s.SourceRanges[0] != netip.MustParsePrefix("10.0.0.0/8") {
		t.Errorf("got %+v", s)
	}
	e := sliceFor("web")
	e.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.08"}}}
	slice, problems := Slice(e)
	expect(t, problems, "Invalid: endpoints[0].addresses[0]: 10.0.0.08 (leading zeros, read as 10.0.0.8)")
	if slice.Endpoints[0].Addr != netip.MustParseAddr("10.0.0.8") {
		t.Errorf("got %s", slice.Endpoints[0].Addr)
	}
	n, problems := Node(&corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.02.1"}}}})
	expect(t, problems, "Invalid: status.addresses[0].address: 192.0.02.1 (leading zeros, read as 192.0.2.1)")
	if n.IPs[0] != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("got %s", n.IPs[0])
	}
}

// Most addresses have no leading zeros, and many a zero: to look costs each endpoint of a large slice nothing.
func TestZerosThatDoNotLead(t *testing.T) {
	for _, s := range []string{"10.0.0.1", "10.100.20.0", "0.0.0.0", "10.0.0.0/08", "1.2.3.0x"} {
		if n := testing.AllocsPerRun(10, func() {
			if d := decimal(s); d != s {
				t.Errorf("%s became %s", s, d)
			}
		}); n != 0 {
			t.Errorf("%s: %g allocations", s, n)
		}
	}
}

// FuzzDecimal demands of every IPv4 address what kube-proxy's parser makes of it.
func FuzzDecimal(f *testing.F) {
	for _, s := range []string{"010.0.0.1", "0.0.0.0", "00.0.0.0", "1.2.3.004", "010.0.0.0/8", "1.2.3", "...", "0000.1.1.1", "::0.1.2.3", "08.1.1.1", "1.2.3.4/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := decimal(s)
		if decimal(d) != d {
			t.Fatalf("%q: %q: %q", s, d, decimal(d))
		}
		if a, err := netip.ParseAddr(s); err == nil && (d != s && netip.MustParseAddr(d) != a) {
			t.Fatalf("%q became %q", s, d)
		}
		want := netutils.ParseIPSloppy(s)
		got, err := netip.ParseAddr(d)
		if want4 := want.To4(); want4 != nil && d != s && (err != nil || netip.AddrFrom4([4]byte(want4)) != got) {
			t.Fatalf("%q: %q, upstream reads %s", s, d, want)
		}
		if want == nil && d != s && err == nil {
			t.Fatalf("%q became %s, upstream refuses it", s, got)
		}
	})
}
