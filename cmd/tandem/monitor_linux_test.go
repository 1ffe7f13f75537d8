// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/linux/nft"
)

// monitored are a Service whose endpoint is on the node, two without endpoints, and two load balancers: of one all
// clients on the node are in the source ranges, of the other none.
var monitored = onNode(webYAML) + withoutEndpoints("shop", 11) + withoutEndpoints("bank", 12) + ranged("open", 7, "192.0.0.0/8, 10.0.0.0/8, 198.0.0.0/8") + ranged("shut", 8, "203.0.113.0/24")

// onNode is webYAML with an endpoint on the node.
func onNode(text string) string {
	return strings.NewReplacer("[10.244.1.2]", "[192.0.2.1]", "- addresses: [10.244.1.3]\n", "").Replace(text)
}

func ranged(name string, number int, ranges string) string {
	return "---\n" + onNode(strings.NewReplacer(
		"name: web", "name: "+name, "10.96.0.10", fmt.Sprintf("10.96.1.%d", number), "kubernetes.io/service-name: web", "kubernetes.io/service-name: "+name,
		"spec:", fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: 198.51.100.%d}]}}\nspec:\n  type: LoadBalancer\n  allocateLoadBalancerNodePorts: false\n  loadBalancerSourceRanges: [%s]", number, ranges),
	).Replace(webYAML))
}

func withoutEndpoints(namespace string, number int) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: %s}\nspec:\n  clusterIP: 10.96.0.%d\n  ports: [{name: sql, port: 5432}]\n", namespace, number)
}

// monitoredNode is a node with a running tandem. A mode with -legacy is on a node that uses that variant of iptables.
func monitoredNode(t *testing.T, mode string) testNode {
	t.Helper()
	node := newTestNode(t)
	mode, legacy := strings.CutSuffix(mode, "-legacy")
	if legacy {
		node.do(func() error {
			out, err := exec.CommandContext(t.Context(), "iptables-legacy", "-N", "FOREIGN").CombinedOutput()
			if err != nil {
				t.Skipf("no iptables-legacy here: %v: %s", err, out)
			}
			return nil
		})
	}
	node.serve("--manifests", folder(t, map[string]string{"web.yaml": monitored}), "--proxy-mode", mode)
	return node
}

// What a client meets is shown, in the modes of this kernel, and only what is asked for. A mode that does not show
// rejections says so.
func TestMonitorInModes(t *testing.T) {
	for _, kind := range []string{"nftables", "iptables", "iptables-legacy", "ipvs", "ipvs-legacy", "userspace"} {
		t.Run(kind, func(t *testing.T) {
			node := monitoredNode(t, kind)
			mode, legacy := strings.CutSuffix(kind, "-legacy")
			client := "192.0.2.1"
			if mode == "ipvs" { // whose cluster IPs are addresses of the node
				client = "10.96.0.0/16"
			}
			_, all := node.started("monitor", "--interval", "100ms")
			_, one := node.started("monitor", "--interval", "100ms", "--service", "web", "--verdict", "forward", "--from", client)
			all.await(t, "through node node-1, mode ")
			one.await(t, "through node node-1, mode ")
			if !strings.Contains(all.String(), "mode "+mode) {
				t.Skipf("mode %s does not work on this kernel: %s", mode, all)
			}
			node.do(func() error {
				l, err := net.Listen("tcp", "192.0.2.1:8080")
				if err == nil {
					t.Cleanup(func() { _ = l.Close() })
				}
				return err
			})
			node.connect("198.51.100.7:80", "198.51.100.8:80", "10.96.0.11:5432", "10.96.0.10:80")
			for _, out := range []*written{one, all} {
				out.await(t, "default/web:http")
				out.await(t, "FORWARD 192.0.2.1:8080")
			}
			if strings.Contains(one.String(), "shop/db") {
				t.Errorf("not asked for: %s", one)
			}
			switch {
			case mode == "userspace":
				all.await(t, "not shown: clients that are rejected before a relay accepts them")
				return
			case legacy:
				all.await(t, "the rules of iptables-legacy that reject packets")
			}
			all.await(t, "shop/db:sql (cluster IP)  REJECT no endpoints")
			all.await(t, "default/shut:http (load balancer IP)  DROP")
			all.await(t, "default/open:http (load balancer IP)  FORWARD")
			for line := range strings.Lines(all.String()) {
				if strings.Contains(line, "by policy, which says") || strings.Contains(line, "default/open") && !strings.Contains(line, "FORWARD") {
					t.Error(line)
				}
			}
		})
	}
}

// However many packets of one namespace are rejected, few of them are shown, and those of others are. What reports them is in the
// kernel only while somebody asks.
func TestMonitorIsBoundedAndLeavesNothing(t *testing.T) {
	for kind, chains := range map[string]int{"nftables": 4, "iptables-legacy": 8} {
		t.Run(kind, func(t *testing.T) { monitorIsBounded(t, kind, chains) })
	}
}

func monitorIsBounded(t *testing.T, kind string, chains int) {
	node := monitoredNode(t, kind)
	tables := func() (names []string) {
		t.Helper()
		node.do(func() error {
			chains, err := nft.BaseChains(t.Context())
			for _, c := range chains {
				if strings.HasPrefix(c.Table, "tandem-monitor-") {
					names = append(names, c.Family+" "+c.Table+" "+c.Name)
				}
			}
			return err
		})
		return names
	}
	if names := tables(); len(names) > 0 {
		t.Errorf("before somebody asks: %v", names)
	}
	cmd, out := node.started("monitor", "--interval", "100ms")
	out.await(t, "through node node-1, mode ")
	if names := tables(); len(names) != chains {
		t.Errorf("base chains: %v", names)
	}
	if _, said := node.ask("trace", "host", "shop/db:5432"); !strings.Contains(said, "SAME") || strings.Contains(said, "tandem-monitor") {
		t.Errorf("trace: %s", said)
	}
	begin := time.Now()
	node.connect(slices.Repeat([]string{"10.96.0.11:5432"}, 500)...)
	node.connect(slices.Repeat([]string{"10.96.0.12:5432"}, 3)...)
	out.await(t, "bank/db:sql (cluster IP)  REJECT")
	took := time.Since(begin)
	shown, others := strings.Count(out.String(), "shop/db"), 0
	for end := time.Now().Add(10 * time.Second); others < 3 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		others = strings.Count(out.String(), "bank/db")
	}
	if most := nft.TracedEach * (2 + int(took/time.Second)); shown == 0 || shown > most || others != 3 {
		t.Errorf("%d of the one (at most %d), %d of the other: %s", shown, most, others, out)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	for end := time.Now().Add(time.Minute); len(tables()) > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nobody asks: %v", tables())
		}
	}
	if code, drift := node.ask("drift", "-o", "json"); code != exitOK || !strings.Contains(drift, `"total": 0`) {
		t.Errorf("exit code %d: %s", code, drift)
	}
}
