// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

func TestInventory(t *testing.T) {
	s, err := conformance.Parse("x", []byte(`# t
-- a.yaml --
kind: List
items:
- kind: EndpointSlice
  ports: [{port: 53, protocol: UDP}, {port: 53}]
  endpoints: [{addresses: [10.244.1.2, 10.244.1.3]}, {addresses: [10.96.0.1]}, {addresses: [nonsense]}, {addresses: [127.0.0.1]}]
---
{broken
---
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}, {type: Hostname, address: node-1}]}
-- packets --
pod     tcp 10.96.0.1:80 -> 10.244.2.2:1
outside tcp [fd00:10:96::1]:80 -> [fd00:10:244:1::10]:1
host    tcp 10.96.0.1:80 -> 192.0.2.11:2
-- 1/packets --
198.51.100.4 tcp 10.96.0.1:80 -> reject
`))
	if err != nil {
		t.Fatal(err)
	}
	inv := take(s)
	as := func(all ...string) (as []netip.Addr) {
		for _, a := range all {
			as = append(as, netip.MustParseAddr(a))
		}
		return as
	}
	if want := as("192.0.2.11", "2001:db8::1", "192.0.2.1"); !slices.Equal(inv.plan.Node, want) {
		t.Errorf("node %v, want %v", inv.plan.Node, want)
	}
	if want := as("198.51.100.4", "2001:db8::100"); !slices.Equal(inv.plan.Outside, want) {
		t.Errorf("outside %v, want %v", inv.plan.Outside, want)
	}
	if want := as("10.244.2.2"); !slices.Equal(inv.plan.Others, want) {
		t.Errorf("others %v, want %v", inv.plan.Others, want)
	}
	if len(inv.plan.Pods) != 2 || !slices.Equal(inv.plan.Pods[1].Addrs, as("10.244.1.10", "fd00:10:244:1::10")) {
		t.Errorf("pods %v: want one with both addresses of the client, and one more", inv.plan.Pods)
	}
	at := netip.MustParseAddrPort
	want := []server{
		{at("10.244.1.2:53"), model.TCP},
		{at("10.244.1.2:53"), model.UDP},
		{at("10.244.2.2:1"), model.TCP},
		{at("192.0.2.11:2"), model.TCP},
		{at("[fd00:10:244:1::10]:1"), model.TCP},
	}
	if !slices.Equal(inv.servers, want) {
		t.Errorf("servers %v, want %v", inv.servers, want)
	}
}

func TestReport(t *testing.T) {
	one := Report{Scenarios: 1, Steps: 2, Packets: 3, Connections: 4}
	one.skip("no SCTP")
	one.fail("row %d", 7)
	var sum Report
	if got, want := sum.String(), "corpus: on the kernel: 0 scenarios, 0 steps, 0 packets (0 connections), 0 traces, none skipped"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	sum.add(one)
	sum.add(one)
	const want = "corpus: on the kernel: 2 scenarios, 4 steps, 6 packets (8 connections), 0 traces\ncorpus: on the kernel: skipped 2 rows: no SCTP"
	if got := sum.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(sum.Failures) != 2 || sum.Failures[0] != "row 7" {
		t.Errorf("failures %q", sum.Failures)
	}
}
