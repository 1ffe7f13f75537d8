// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/linux/netns"
)

// monitored are two Services: one whose endpoint is on the node, and one without endpoints.
var monitored = strings.NewReplacer("[10.244.1.2]", "[192.0.2.1]", "- addresses: [10.244.1.3]\n", "").Replace(webYAML) +
	"---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\nspec:\n  clusterIP: 10.96.0.11\n  ports: [{name: sql, port: 5432}]\n"

// What a client meets is shown, in the modes of this kernel, and only what is asked for.
func TestMonitorInModes(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	for _, mode := range []string{"nftables", "iptables", "userspace"} { // ipvs: ci/netns
		t.Run(mode, func(t *testing.T) {
			node, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { node.Close() })
			here := func(args ...string) *written {
				t.Helper()
				var cmd *exec.Cmd
				var out *written
				if err := node.Do(netns.Node, func() (err error) {
					cmd, out, err = program(t.Context(), args...)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					_ = cmd.Process.Signal(os.Interrupt)
					_ = cmd.Wait() // its context has ended
				})
				return out
			}
			log := here("run", "--manifests", folder(t, map[string]string{"web.yaml": monitored}), "--hostname-override", "node-1", "--proxy-mode", mode, "--cluster-cidr", "10.244.0.0/16")
			log.await(t, "services programmed")
			all, one := here("monitor", "--interval", "100ms"), here("monitor", "--interval", "100ms", "--service", "web", "--verdict", "forward", "--from", "192.0.2.0/24")
			all.await(t, "mode "+mode)
			one.await(t, "mode "+mode)
			if err := node.Do(netns.Node, func() error {
				l, err := net.Listen("tcp", "192.0.2.1:8080")
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = l.Close() })
				for _, at := range []string{"10.96.0.11:5432", "10.96.0.10:80"} {
					if c, err := net.DialTimeout("tcp", at, time.Second); err == nil {
						t.Cleanup(func() { _ = c.Close() })
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			for _, out := range []*written{one, all} {
				out.await(t, "default/web:http")
				out.await(t, "FORWARD 192.0.2.1:8080")
			}
			if strings.Contains(one.String(), "shop/db") {
				t.Errorf("not asked for: %s", one)
			}
			t.Log(all.String())
		})
	}
}
