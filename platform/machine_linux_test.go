// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// An external IP is rejected for as long as it is an address of this machine,
// though no Node object says so.
func TestExternalIPThatTheMachineHas(t *testing.T) {
	const text = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.10
  externalIPs: [203.0.113.9]
  ports: [{name: http, port: 22}]
`
	lab := newNet(t)
	c := config.Default()
	c.NodeName, c.HTTPAddress, c.HealthAddress, c.Mode, c.Manifests = "n1", "", "", "nftables", t.TempDir()
	c.Conntrack, c.OOMScoreAdj = config.Conntrack{}, nil
	if err := os.WriteFile(filepath.Join(c.Manifests, "web.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "keepalived"}}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(203, 0, 113, 9), Mask: net.CIDRMask(32, 32)}}
	var p *platform.Proxy
	err := lab.Do(netns.Node, func() (err error) {
		needModes(t, c.Mode)
		if err := netlink.LinkAdd(link); err != nil {
			t.Skipf("no bridges here: %v", err)
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return err
		}
		p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	wait := func(fronts, problems int) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			d, err := p.Document(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Services) == 1 && len(d.Services[0].Frontends) == fronts && len(d.Services[0].Problems) == problems && d.SyncedAt != nil {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("want %d fronts and %d problems: %+v", fronts, problems, d.Services)
			}
		}
	}
	wait(1, 1)
	do := func(f func(netlink.Link, *netlink.Addr) error) {
		t.Helper()
		if err := lab.Do(netns.Node, func() error { return f(link, address) }); err != nil {
			t.Fatal(err)
		}
	}
	do(netlink.AddrDel)
	wait(2, 0)
	do(netlink.AddrAdd)
	wait(1, 1)
}

// Manifests without a Node object: node ports answer on the address that the machine has, in a
// mode that takes it from the Node.
func TestNodePortsWithoutNode(t *testing.T) {
	const text = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- addresses: [10.244.1.2]
`
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	const client, server = netns.Place("10.244.1.3"), netns.Place("10.244.1.2")
	plan := netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for i, at := range []netns.Place{client, server} {
		plan.Pods = append(plan.Pods, netns.Pod{Place: at, Interface: fmt.Sprintf("pod%d", i), Addrs: []netip.Addr{netip.MustParseAddr(string(at))}})
	}
	lab, err := netns.New(t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := lab.Serve(server, netip.MustParseAddrPort("10.244.1.2:8080"), model.TCP); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.NodeName, c.HTTPAddress, c.HealthAddress, c.Mode, c.Manifests = "n1", "", "", "nftables", t.TempDir()
	c.Conntrack, c.OOMScoreAdj, c.ClusterCIDRs = config.Conntrack{}, nil, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	c.Complete()
	if !c.NodePorts.Primary {
		t.Fatal("the mode serves node ports elsewhere, too")
	}
	if err := os.WriteFile(filepath.Join(c.Manifests, "web.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var p *platform.Proxy
	err = lab.Do(netns.Node, func() (err error) {
		needModes(t, c.Mode)
		p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	call := netns.Call{From: client, Proto: model.TCP, To: netip.MustParseAddrPort("192.0.2.1:30080"), Timeout: time.Second}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		a, err := lab.Dial(call)
		if err == nil && a.Outcome == netns.Answered {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v, %v", call.To, a.Outcome, err)
		}
	}
}
