// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tandem-proxy/tandem/core/config"
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
