// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestPlan checks what follows from a shape: names, zones, addresses that nobody else has.
func TestPlan(t *testing.T) {
	p, err := newPlan(shape{Nodes: 4, Zones: 3})
	if err != nil {
		t.Fatal(err)
	}
	var zones []string
	seen := map[netip.Addr]string{}
	for _, n := range p.machines() {
		if n.Name != controlName {
			zones = append(zones, n.Zone)
		}
		if len(n.Addr) != 2 || !n.Addr[0].Is4() || !n.Addr[1].Is6() {
			t.Errorf("%s has the addresses %v", n.Name, n.Addr)
		}
		for i, a := range n.Addr {
			if seen[a] != "" || !machineNets[i].Contains(a) {
				t.Errorf("%s has %s, as %q, in %s", n.Name, a, seen[a], machineNets[i])
			}
			seen[a] = n.Name
		}
		for i, pods := range n.Pods {
			if !podNets[i].Overlaps(pods) || pods != pods.Masked() {
				t.Errorf("pods of %s: %s is no network of %s", n.Name, pods, podNets[i])
			}
			for _, other := range p.machines() {
				if other.Name != n.Name && len(other.Pods) > 0 && other.Pods[i].Overlaps(pods) {
					t.Errorf("pods of %s and %s share %s", n.Name, other.Name, pods)
				}
			}
		}
	}
	if want := []string{"zone-1", "zone-2", "zone-3", "zone-1"}; !slices.Equal(zones, want) {
		t.Errorf("zones %v, want %v", zones, want)
	}
	if got := p.ranges(serviceNets); got != "10.96.0.0/16,fd00:10:96::/112" {
		t.Errorf("ranges of Services %s", got)
	}
	for _, dns := range []string{dnsAddress, apiAddress} {
		if !serviceNets[0].Contains(netip.MustParseAddr(dns)) {
			t.Errorf("%s is no address of a Service", dns)
		}
	}
}

func TestPlanOfOneFamily(t *testing.T) {
	p, err := newPlan(shape{Nodes: 1, Zones: 1, Single: true})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(slices.Concat(p.controlLinks([]int{7}), p.nodeLinks(p.Workers[0]), []string{p.ranges(podNets), p.masquerade()}), "\n")
	if strings.Contains(all, "fd00") || strings.Contains(all, "2001:db8") {
		t.Errorf("IPv6 in\n%s", all)
	}
}

func TestBadShapes(t *testing.T) {
	for _, s := range []shape{{Nodes: 0, Zones: 1}, {Nodes: maxNodes + 1, Zones: 1}, {Nodes: 1, Zones: 0}} {
		if _, err := newPlan(s); err == nil {
			t.Errorf("%+v passes", s)
		}
	}
}

// TestLinks reads the commands of ip(8): every pod network has a route on every other machine.
func TestLinks(t *testing.T) {
	p, err := newPlan(shape{Nodes: 3, Zones: 3})
	if err != nil {
		t.Fatal(err)
	}
	control := p.controlLinks([]int{11, 12, 13})
	for _, want := range []string{
		"addr add 172.18.0.10/16 dev br0", "addr add fd00:172:18::a/64 dev br0 nodad", "route add ::/0 dev nowhere",
		"link add node2 type veth peer name eth0 netns 12", "route add 10.244.3.0/24 via 172.18.0.13", "route add fd00:10:244:1::/64 via fd00:172:18::b",
		"addr add 192.0.2.254/32 dev lo",
	} {
		if !slices.Contains(control, want) {
			t.Errorf("control has no %q in\n%s", want, strings.Join(control, "\n"))
		}
	}
	node := p.nodeLinks(p.Workers[1])
	for _, want := range []string{"addr add 172.18.0.12/16 dev eth0", "route add 0.0.0.0/0 via 172.18.0.10", "route add 10.244.1.0/24 via 172.18.0.11", "route add fd00:10:244:3::/64 via fd00:172:18::d"} {
		if !slices.Contains(node, want) {
			t.Errorf("node-2 has no %q in\n%s", want, strings.Join(node, "\n"))
		}
	}
	if slices.ContainsFunc(node, func(l string) bool { return strings.Contains(l, "10.244.2.0") }) {
		t.Error("node-2 has a route to its own pods, which its plug-in makes")
	}
	for _, want := range []string{"ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade", "ip6 saddr fd00:10:244::/56 ip6 daddr != fd00:10:244::/56 masquerade"} {
		if !strings.Contains(p.masquerade(), want) {
			t.Errorf("no %q in\n%s", want, p.masquerade())
		}
	}
}

// TestMachines checks that what machines run finds its files: every folder that an argument names is
// bound, and every configuration is one that is written.
func TestMachines(t *testing.T) {
	p, err := newPlan(shape{Nodes: 2, Zones: 2})
	if err != nil {
		t.Fatal(err)
	}
	l := layout{State: t.TempDir(), Root: "/debian", Parts: map[string]string{"upstream": "/u", "kubernetes": "/k", "containerd": "/c", "coredns": "/d"}}
	conf := configuration{plan: p, dir: l.config()}
	if err := conf.write(l.kubeconfig(), 1234); err != nil {
		t.Fatal(err)
	}
	all := []machine{l.control(p)}
	for _, n := range p.Workers {
		all = append(all, l.worker(n))
	}
	for _, m := range all {
		bound := map[string]bool{}
		for _, b := range m.Binds {
			if bound[b.To] {
				t.Errorf("%s: two folders on %s", m.Name, b.To)
			}
			bound[b.To] = true
		}
		for _, prog := range m.Programs {
			for i, arg := range prog.Args {
				_, value, _ := strings.Cut("="+arg, "=")
				if _, after, ok := strings.Cut(arg, "="); ok {
					value = after
				}
				switch {
				case i == 0 && !bound[path.Dir(value)]:
					t.Errorf("%s: %s is in no folder of the machine", m.Name, value)
				case strings.HasPrefix(value, configDir+"/") && !exists(t, l.config(), value):
					t.Errorf("%s: %s: no file %s is written", m.Name, prog.Name, value)
				}
			}
		}
	}
}
