// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

const ranges = `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16, 10.98.0.0/15]}
`

// A restart that cannot read its ServiceCIDRs takes them from the kernel, in every mode that
// works here, and writes nothing. Those that are not there any more go.
func TestUnreadableServiceCIDRsAreTakenFromTheKernel(t *testing.T) {
	want := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.98.0.0/15")}
	for _, name := range []config.Mode{"nftables", "iptables", "ipvs"} {
		t.Run(string(name), func(t *testing.T) {
			net := newNet(t)
			c := config.Default()
			c.Mode, c.Strict, c.Manifests = name, true, t.TempDir()
			c.NodeName, c.HTTPAddress, c.HealthAddress = "n1", "", ""
			c.Conntrack, c.OOMScoreAdj = config.Conntrack{}, nil
			inside := func(f func() error) {
				t.Helper()
				if err := net.Do(netns.Node, f); err != nil {
					t.Fatal(err)
				}
			}
			inside(func() error { needModes(t, name); return nil })
			put := func(file, text string) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(c.Manifests, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			run := func(when string, want []netip.Prefix) (writes uint64) {
				t.Helper()
				var p *platform.Proxy
				inside(func() (err error) {
					p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
					return err
				})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- p.Run(ctx) }()
				p.Ready(t.Context())
				if s, err := p.Snapshot(t.Context()); err != nil {
					t.Error(err)
				} else if writes = s.Status.Writes; !slices.Equal(s.Host.ServiceCIDRs, want) {
					t.Errorf("%s: ranges %v, want %v", when, s.Host.ServiceCIDRs, want)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				return writes
			}
			put("web.yaml", web)
			put("ranges.yaml", ranges)
			run("readable", want)
			put("ranges.yaml", "{{{")
			if writes := run("unreadable", want); writes != 0 {
				t.Errorf("%d writes", writes)
			}
			if err := os.Remove(filepath.Join(c.Manifests, "ranges.yaml")); err != nil {
				t.Fatal(err)
			}
			if writes := run("none", nil); writes == 0 {
				t.Error("nothing is written, though the ranges are gone")
			}
		})
	}
}
